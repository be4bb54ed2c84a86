"""The recorded shapes of clients: that they load, are small and invented, and have what makes each client special."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clawrl.serving.dialects.chat.messages import parse_messages
from tests.wire import FOLDER, WireRequest, load, names

# Of real clients, with their words in them; never part of this repository.
RECORDINGS = Path(os.environ.get("CLAWRL_WIRE_RECORDINGS", "recordings"))
MAX_BYTES = 6000
MAX_SHARED_CHARS = 40
PATHS = {"/v1/chat/completions", "/v1/responses", "/v1/messages?beta=true"}
INTERNAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _windows(texts: Iterator[str], length: int) -> set[str]:
    return {text[i : i + length] for text in texts for i in range(len(text) - length + 1)}


def _shared(ours: Any, theirs: Any) -> set[str]:
    """Stretches of text that are in both and longer than is allowed."""
    length = MAX_SHARED_CHARS + 1
    found = _windows(_texts(ours), length)
    return {
        text[i : i + length]
        for text in _texts(theirs)
        for i in range(len(text) - length + 1)
        if text[i : i + length] in found
    }


def _said(request: WireRequest) -> list[Any]:
    """The messages without what OpenClaw only adds for the moment."""
    messages: list[Any] = request.body["messages"]
    return [message for message in messages if INTERNAL not in json.dumps(message)]


def _tools(name: str) -> set[str]:
    return {tool["function"]["name"] for tool in load(name).body.get("tools", [])}


@pytest.mark.parametrize("name", names())
def test_a_fixture_is_a_small_request_to_a_known_address(name: str) -> None:
    request = load(name)
    assert (FOLDER / f"{name}.json").stat().st_size < MAX_BYTES
    assert request.method == "POST" and request.path in PATHS
    assert request.body["model"] == "served_name"
    assert all(isinstance(value, str) for value in request.headers.values())
    assert "Bearer secret" in request.headers.values()


@pytest.mark.parametrize("name", [name for name in names() if load(name).path == "/v1/chat/completions"])
def test_the_messages_of_every_chat_request_can_be_read(name: str) -> None:
    assert len(parse_messages(load(name).body)) == len(load(name).body["messages"])


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not here")
@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("*.json")), ids=lambda file: file.stem)
def test_no_text_is_taken_from_a_recording(recording: Path) -> None:
    ours = [[load(name).headers, load(name).body] for name in names()]
    assert _shared(ours, json.loads(recording.read_text(encoding="utf-8"))) == set()


def test_a_text_that_was_taken_would_be_noticed() -> None:
    text = "x" * 10 + "".join(chr(97 + i % 26) for i in range(MAX_SHARED_CHARS + 1))
    assert _shared({"a": [text]}, [{"b": text[10:]}]) == {text[10:]}
    assert _shared({"a": [text]}, [{"b": text[11:]}]) == set()


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("openclaw_1", "openclaw_1_after_tools"), ("openclaw_1_after_tools", "openclaw_2"), ("openclaw_2", "openclaw_3")],
)
def test_an_openclaw_turn_extends_the_one_before_once_the_internal_context_is_dropped(earlier: str, later: str) -> None:
    before, after = load(earlier), load(later)
    assert _said(after)[: len(_said(before))] == _said(before)
    assert after.body["messages"][: len(before.body["messages"])] != before.body["messages"]
    assert after.headers["session_id"] == before.headers["session_id"] == "harbour-1:0"
    assert _tools(earlier) == _tools(later)


def test_only_the_requests_of_one_run_share_a_trace() -> None:
    traces = [
        load(name).headers["traceparent"].split("-")[1]
        for name in ("openclaw_1", "openclaw_1_after_tools", "openclaw_2")
    ]
    assert traces[0] == traces[1] != traces[2]


@pytest.mark.parametrize("name", ["openclaw_heartbeat", "openclaw_memory_flush"])
def test_what_openclaw_does_on_its_own_has_the_session_but_another_prompt_and_fewer_tools(name: str) -> None:
    mine, main = load(name), load("openclaw_3")
    assert mine.headers["session_id"] == main.headers["session_id"]
    assert mine.body["messages"][0] != main.body["messages"][0]
    assert _tools(name) < _tools("openclaw_3")


def test_a_memory_flush_may_only_read_and_write() -> None:
    assert _tools("openclaw_memory_flush") == {"read", "write"}
    assert _said(load("openclaw_memory_flush"))[-1]["content"].startswith("Pre-compaction memory flush.")


def test_a_compaction_has_no_tools_and_a_bare_session_and_what_follows_counts_one_up() -> None:
    request, following = load("openclaw_compaction"), load("openclaw_after_compaction")
    assert "tools" not in request.body and "tool_choice" not in request.body
    assert request.body["messages"][0]["content"].startswith("You are a context summarization assistant")
    assert (request.headers["session_id"], following.headers["session_id"]) == ("harbour-1", "harbour-1:1")
    assert "compacted into the following summary" in following.body["messages"][1]["content"]


def test_a_subagent_has_a_session_of_its_own() -> None:
    request = load("openclaw_subagent")
    assert not request.headers["session_id"].startswith("harbour-1")
    assert "[Subagent Task]" in request.body["messages"][1]["content"]


def test_the_older_openclaw_sends_parts_and_names_no_session() -> None:
    request = load("openclaw_old")
    kinds = {type(message["content"]) for message in request.body["messages"] if message["role"] == "user"}
    assert kinds == {list}
    assert "session" not in json.dumps(request.headers).lower()


def test_pi_ai_sends_a_developer_message() -> None:
    assert load("pi_ai").body["messages"][0]["role"] == "developer"


def test_codex_sends_items_and_tools_of_three_types_and_one_id_in_many_places() -> None:
    request = load("codex")
    assert {item["type"] for item in request.body["input"]} == {"message", "function_call", "function_call_output"}
    assert {tool["type"] for tool in request.body["tools"]} == {"function", "namespace", "web_search"}
    assert request.headers["session-id"] == request.headers["thread-id"] == request.body["prompt_cache_key"]


def test_claude_code_sends_a_system_message_whose_content_changes_its_form() -> None:
    first, second = (load(name).body["messages"] for name in ("claude_code_1", "claude_code_2"))
    assert [first[1]["role"], second[1]["role"]] == ["system", "system"]
    assert first[1]["content"][0]["text"] == second[1]["content"]


def test_mini_swe_agent_replays_arguments_and_spaces_verbatim() -> None:
    answer = load("mini_swe_agent").body["messages"][2]
    assert answer["content"] != answer["content"].strip()
    arguments = answer["tool_calls"][0]["function"]["arguments"]
    assert json.dumps(json.loads(arguments)) != arguments


def test_langchain_asks_for_structured_output() -> None:
    assert load("langchain_structured").body["response_format"]["type"] == "json_schema"
