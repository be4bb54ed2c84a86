"""Whatever is sent, the answer is either a request that was understood or a refusal in the dialect's own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from transformers import AutoTokenizer

from clawrl.messages import FinishReason, Message, TurnId, VersionSpan
from clawrl.serving.body import decode_body
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects import chat, messages, responses
from clawrl.serving.dialects.base import AnswerFacts, Asked
from clawrl.serving.dialects.common import MAX_ARGUMENTS_DEPTH
from clawrl.serving.errors import ApiError
from clawrl.serving.feedback import parse_feedback
from clawrl.serving.fields import JsonObject
from clawrl.serving.pieces import FinishPiece, Usage, WholeAnswer
from clawrl.serving.sessions import affinity_key, make_arrival
from clawrl.serving.template import ChatRenderer
from tests.malformed import malformed, nested
from tests.tiny_model import CHAT_TEMPLATE, build_tiny_model
from tests.wire import load, names

CONFIG = ServingConfig(served_name="served_name")
LIMIT = 500_000
KNOWING_TOOLS = (
    CHAT_TEMPLATE.replace(
        "<|im_end|>",
        "{{ m.reasoning_content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>",
    )
    + "{{ tools | tojson }}{{ enable_thinking }}"
)
FACTS = AnswerFacts(turn_ids=(TurnId("t1"),), model="served_name", created=1)
ANSWER = WholeAnswer(
    finish=FinishPiece(
        finish_reason=FinishReason.STOP,
        spans=(VersionSpan(start=0, end=1, version=1),),
        version=1,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        message=Message(role="assistant", content="aye"),
    ),
    logprobs=(),
)
HAND_WRITTEN: tuple[JsonObject, ...] = (
    {
        "model": "served_name",
        "messages": [
            {"role": "system", "content": "short"},
            {"role": "user", "content": [{"type": "text", "text": "how deep is it?"}], "name": "Ann"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "ask the line",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "sound", "arguments": '{"at": 3}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "4 m"},
        ],
        "tools": [{"type": "function", "function": {"name": "sound", "description": "Depth.", "parameters": {}}}],
        "tool_choice": {"type": "function", "function": {"name": "sound"}},
        "chat_template_kwargs": {"enable_thinking": True},
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 9,
        "n": 2,
        "seed": 7,
        "logprobs": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "session_id": "s",
        "group_id": "g",
        "turn_type": "main",
        "session_done": False,
    },
    {
        "model": "served_name",
        "instructions": "short",
        "input": [
            {"role": "user", "content": "how deep is it?"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ask"}], "content": []},
            {"type": "function_call", "call_id": "c1", "namespace": "deck", "name": "sound", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "4 m"}]},
        ],
        "tools": [
            {"type": "namespace", "name": "deck", "tools": [{"type": "function", "name": "sound", "parameters": {}}]},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "sound", "namespace": "deck"},
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 9,
        "truncation": "disabled",
        "previous_response_id": "resp_t1",
        "store": True,
        "background": False,
    },
    {
        "model": "served_name",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "short"}],
        "messages": [
            {"role": "user", "content": "how deep is it?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "ask", "signature": "s"},
                    {"type": "text", "text": "wait"},
                    {"type": "tool_use", "id": "c1", "name": "sound", "input": {"at": 3}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "4", "is_error": True}],
            },
        ],
        "tools": [
            {"name": "sound", "input_schema": {"type": "object"}},
            {"type": "web_search_1", "name": "web_search"},
        ],
        "tool_choice": {"type": "tool", "name": "sound"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["END"],
        "metadata": {"user_id": '{"session_id": "s"}'},
    },
    {"turn_id": "t1", "score": 1, "comment": "yes"},
    {"session_id": "s", "score": -0.5},
)
BODIES: tuple[JsonObject, ...] = (*HAND_WRITTEN, *HAND_WRITTEN, *(load(name).body for name in names()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One address: how it reads a body, and how it words a refusal. Feedback and a count are answered elsewhere."""

    name: str
    read: Callable[[JsonObject], Asked | None]
    error: Callable[[ApiError], dict[str, Any]]


def _feedback(body: JsonObject) -> None:
    parse_feedback(body, {})


def _count(body: JsonObject) -> None:
    messages.read_count(body, CONFIG)


DOORS = (
    Door(name="chat", read=lambda body: chat.read(body, {}, CONFIG), error=chat.error),
    Door(name="responses", read=lambda body: responses.read(body, {}, CONFIG), error=responses.error),
    Door(name="messages", read=lambda body: messages.read(body, {}, CONFIG), error=messages.error),
    Door(name="count_tokens", read=_count, error=messages.error),
    Door(name="feedback", read=_feedback, error=chat.error),
)


@pytest.fixture(scope="module", params=[CHAT_TEMPLATE, KNOWING_TOOLS], ids=["plain", "knowing_tools"])
def renderer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))
    tokenizer.chat_template = request.param
    return ChatRenderer(tokenizer, 100_000)


def _wire(value: Mapping[str, Any]) -> bytes:
    """As an HTTP server writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _serve(asked: Asked, renderer: ChatRenderer) -> None:
    """All that happens to a request that was read, but for the model."""
    wanted = asked.request
    make_arrival(
        turn_id=TurnId("t1"),
        messages=wanted.messages,
        session=wanted.facts.session,
        owner="o",
        kind=wanted.facts.kind,
        ends_session=wanted.facts.ends,
        arrived_at=0.0,
        group=wanted.facts.group,
        inputs=wanted.inputs,
    )
    affinity_key(wanted.facts.session, "o", wanted.messages)
    prompt = renderer.render(wanted.messages, wanted.inputs)
    assert renderer.fit(wanted.sampling, len(prompt)).max_tokens > 0
    _wire(asked.writer(FACTS).whole([ANSWER]))


def _refusal(raw: bytes, door: Door, renderer: ChatRenderer) -> ApiError | None:
    """``None`` for a body that is accepted."""
    try:
        asked = door.read(decode_body(raw, LIMIT))
        if asked is not None:
            _serve(asked, renderer)
    except ApiError as error:
        return error
    return None


def _is_well_said(error: ApiError, door: Door) -> bool:
    """A 4xx in the very shape of the dialect, which can be written."""
    body = door.error(error)
    _wire(body)
    inner = body["error"]
    assert inner["message"] and isinstance(inner["message"], str) and isinstance(inner["type"], str)
    if door.error is messages.error:
        assert set(body) == {"type", "error"} and set(inner) == {"type", "message"} and body["type"] == "error"
    else:
        assert set(body) == {"error"} and set(inner) == {"message", "type", "param", "code"}
        assert all(inner[name] is None or isinstance(inner[name], str) for name in ("param", "code"))
    return 400 <= error.status < 500


def _complaints(seeds: range, renderer: ChatRenderer) -> Iterator[str]:
    accepted: set[str] = set()
    codes: set[str | None] = set()
    for seed in seeds:
        raw = malformed(seed, BODIES)
        for door in DOORS:
            try:
                refusal = _refusal(raw, door, renderer)
                if refusal is None:
                    accepted.add(door.name)
                else:
                    codes.add(refusal.code)
                    assert _is_well_said(refusal, door), refusal.status
            except Exception as failure:
                yield f"seed {seed}, {door.name}: {type(failure).__name__} {str(failure)[:200]}"
    if len(accepted) < len(DOORS) or len(codes) < 6:
        yield f"these bodies test little: only {accepted} accepted any of them, and the refusals were {codes}"


def test_500_malformed_bodies_are_understood_or_refused(renderer: ChatRenderer) -> None:
    assert list(_complaints(range(500), renderer)) == []


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_10_000_malformed_bodies_are_understood_or_refused(renderer: ChatRenderer) -> None:
    assert list(_complaints(range(10_000), renderer)) == []


def test_the_same_seed_gives_the_same_body_whatever_was_made_before() -> None:
    first = [malformed(seed, BODIES) for seed in range(200)]
    assert [malformed(seed, BODIES) for seed in reversed(range(200))] == first[::-1]
    assert len(set(first)) > 150


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_what_the_malformed_bodies_are_made_of_is_accepted_somewhere(number: int, renderer: ChatRenderer) -> None:
    raw = json.dumps(BODIES[number]).encode()
    assert any(_refusal(raw, door, renderer) is None for door in DOORS)


def _chat(message: JsonObject | None = None, **fields: Any) -> bytes:
    return _written({"messages": [message or {"role": "user", "content": "hi"}], **fields})


def _called(arguments: str) -> bytes:
    call = {"id": "c1", "function": {"name": "sound", "arguments": arguments}}
    return _chat({"role": "assistant", "tool_calls": [call]})


def _item(item: JsonObject) -> bytes:
    return _written({"input": [{"role": "user", "content": "hi"}, item]})


def _written(fields: JsonObject) -> bytes:
    return json.dumps({"model": "served_name", **fields}).encode()


@pytest.mark.parametrize(
    ("door", "raw", "param"),
    [
        ("chat", _called(nested(100_000)), "messages[0].tool_calls[0].function.arguments"),
        ("chat", _called('{"a": ' + nested(100) + "}"), "messages[0].tool_calls[0].function.arguments"),
        ("chat", _called('{"a": "\\ud83d"}'), "messages[0].tool_calls[0].function.arguments"),
        (
            "responses",
            _item({"type": "function_call", "call_id": "c1", "name": "sound", "arguments": nested(100_000)}),
            "input[1].arguments",
        ),
        ("chat", _chat({"role": "assistant", "reasoning": "so", "reasoning_text": 3}), "messages[0].reasoning_text"),
        (
            "responses",
            _item({"type": "reasoning", "content": [{"type": "text", "text": "so"}], "summary": 3}),
            "input[1].summary",
        ),
        ("chat", _chat(chat_template_kwargs={"style": "\ud83d"}), "chat_template_kwargs"),
        (
            "chat",
            _chat(tools=[{"function": {"name": "f", "parameters": {"a": "\ud83d"}}}]),
            "tools[0].function.parameters",
        ),
        (
            "responses",
            b'{"model": "served_name", "input": "hi", "tools": [{"name": "f", "parameters": {"a": 1e999}}]}',
            None,
        ),
        ("feedback", b'{"turn_id": "t1", "score": 1, "\\ud83d": 1}', "?"),
    ],
    ids=lambda value: value if isinstance(value, str) else "raw",
)
def test_what_once_went_wrong_inside_is_a_400_that_names_its_place(
    door: str, raw: bytes, param: str | None, renderer: ChatRenderer
) -> None:
    asked = next(found for found in DOORS if found.name == door)
    error = _refusal(raw, asked, renderer)
    assert error is not None and _is_well_said(error, asked)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    "arguments",
    [
        "not JSON {{",
        '{"a": ' + nested(MAX_ARGUMENTS_DEPTH - 1) + "}",
        '{"a": "\\ud83d\\ude42"}',
        '{"a": NaN, "n": 1e999}',
        "[" * 3,
        "9" * 5000,
    ],
    ids=["no JSON", "deep", "a whole character", "odd numbers", "no list", "a long number"],
)
def test_arguments_may_be_anything_that_can_be_shown_to_the_model(arguments: str, renderer: ChatRenderer) -> None:
    assert _refusal(_called(arguments), DOORS[0], renderer) is None
