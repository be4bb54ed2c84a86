"""Which session each recorded client names, and by which of its names: each is taken away after it was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from tests.replay_kit import facts, sent
from tests.wire import WireRequest, load

RUNTIME = "Runtime: agent=office | session=agent:office:x | sessionId={} | host=quay"
FROM_TEXT, FROM_METADATA = "the runtime line", "metadata.user_id"


def _with_text(request: WireRequest, text: str) -> WireRequest:
    """``text`` behind the first user message in the stead of a runtime line, in whichever way its client writes one."""
    field = "input" if "input" in request.body else "messages"
    items = deepcopy(request.body[field])
    message = next(item for item in items if item.get("role") == "user")
    holder, key = (message, "content") if isinstance(message["content"], str) else (message["content"][-1], "text")
    holder[key] = holder[key].partition("\n\nRuntime:")[0] + text
    return sent(request, **{field: items})


def _named(request: WireRequest, place: str, name: str | None) -> WireRequest:
    """The request with this name in this place, or with none there."""
    kind, _, key = place.partition(" ")
    if place == FROM_TEXT:
        return _with_text(request, "" if name is None else f"\n\n{RUNTIME.format(name)}")
    if place == FROM_METADATA:
        user_id = json.dumps({"device_id": "d", "account_uuid": "", "session_id": name})
        return sent(request, metadata=None if name is None else {"user_id": user_id})
    if kind == "header":
        others = [header for header in request.headers if header.lower() == key]
        return sent(request, dict.fromkeys(others) | {key: name})
    value: dict[str, Any] = {key: name}
    return sent(request, **value)


def _order(request: WireRequest, places: Sequence[str]) -> list[str]:
    """The places in the order in which they are asked."""
    names = {f"name-{i}": place for i, place in enumerate(places)}
    for name, place in names.items():
        request = _named(request, place, name)
    found: list[str] = []
    while (session := facts(request).session) is not None:
        found.append(names.pop(session))
        request = _named(request, found[-1], None)
    return found


def _without(request: WireRequest, places: Sequence[str]) -> WireRequest:
    for place in places:
        request = _named(request, place, None)
    return request


@pytest.mark.parametrize(
    ("fixture", "session", "places"),
    [
        ("openclaw_1", "harbour-1", ["header session_id", "header x-session-affinity", FROM_TEXT]),
        ("openclaw_compaction", "harbour-1", ["header session_id", "header x-session-affinity"]),
        ("openclaw_after_compaction", "harbour-1", ["header session_id", "header x-session-affinity"]),
        (
            "openclaw_subagent",
            "b3d1c0de-0000-4000-8000-000000000001",
            ["header session_id", "header x-session-affinity"],
        ),
        ("openclaw_old", None, []),
        ("pi_ai", "pi-7", ["header x-session-id"]),
        ("mini_swe_agent", "swe-3", ["header x-session-id"]),
        (
            "codex",
            "0c0de000-0000-7000-8000-000000000001",
            ["header session-id", "header thread-id", "field prompt_cache_key"],
        ),
        (
            "claude_code_1",
            "c1a0de00-0000-4000-8000-000000000001",
            ["header x-claude-code-session-id", FROM_METADATA],
        ),
    ],
)
def test_a_client_has_one_session_under_each_of_its_names_and_none_without_them(
    fixture: str, session: str | None, places: list[str]
) -> None:
    request = load(fixture)
    assert facts(request).session == session
    for count in range(len(places)):
        assert facts(_without(request, places[:count])).session == session
    assert facts(_without(request, places)).session is None
    assert _order(request, places) == places


@pytest.mark.parametrize("fixture", ["openclaw_1", "codex", "claude_code_1"])
def test_in_every_dialect_the_names_are_asked_in_one_order(fixture: str) -> None:
    places = [
        "header x-session-id",
        "field session_id",
        "header session_id",
        "header x-session-affinity",
        "header session-id",
        "header thread-id",
        "header x-claude-code-session-id",
        "field prompt_cache_key",
        FROM_TEXT,
    ]
    unnamed = sent(load(fixture), metadata=None)
    assert _order(unnamed, places) == places


def test_what_a_client_says_of_itself_comes_before_what_stands_in_a_text() -> None:
    request = load("claude_code_1")
    assert _order(_without(request, ["header x-claude-code-session-id"]), [FROM_METADATA, FROM_TEXT]) == [
        FROM_METADATA,
        FROM_TEXT,
    ]


def test_a_count_behind_the_name_is_how_often_the_history_was_cut() -> None:
    names = ["openclaw_1", "openclaw_compaction", "openclaw_after_compaction"]
    sent_names = [load(name).headers["session_id"] for name in names]
    assert sent_names == ["harbour-1:0", "harbour-1", "harbour-1:1"]
    assert {facts(load(name)).session for name in names} == {"harbour-1"}
