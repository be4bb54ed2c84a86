"""What a request says about its conversation beside its name and kind: its group, and whether it is the last."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Message, TurnKind
from clawrl.serving.errors import ApiError
from clawrl.serving.sessions import SessionFacts, session_facts


@pytest.mark.parametrize(
    ("headers", "body", "group"),
    [
        ({}, {}, None),
        ({"X-Group-Id": " g "}, {"group_id": "other"}, "g"),
        ({}, {"group_id": "g"}, "g"),
        ({}, {"group_id": ""}, None),
    ],
)
def test_the_group_is_the_header_or_else_the_body(
    headers: dict[str, str], body: dict[str, Any], group: str | None
) -> None:
    assert session_facts(headers, body, TurnKind.MAIN).group == group


def test_a_name_that_is_too_long_is_refused_by_its_field() -> None:
    for field in ("session_id", "group_id"):
        with pytest.raises(ApiError) as caught:
            session_facts({}, {field: "x" * 257}, TurnKind.MAIN)
        assert caught.value.param == field


@pytest.mark.parametrize(
    ("value", "done"),
    [("1", True), ("true", True), ("YES", True), ("on", True), ("0", False), ("no", False), ("done", False)],
)
def test_done_is_one_of_four_words(value: str, done: bool) -> None:
    assert session_facts({"X-Session-Done": value}, {}, TurnKind.MAIN).ends is done
    assert session_facts({}, {"session_done": value}, TurnKind.MAIN).ends is done


def test_done_in_the_body_may_be_a_boolean_or_one_and_the_header_beats_it() -> None:
    assert session_facts({}, {"session_done": True}, TurnKind.MAIN).ends
    assert session_facts({}, {"session_done": 1}, TurnKind.MAIN).ends
    assert not session_facts({}, {"session_done": False}, TurnKind.MAIN).ends
    assert not session_facts({"X-Session-Done": "0"}, {"session_done": True}, TurnKind.MAIN).ends


def test_the_facts_are_read_off_the_messages_where_the_client_says_nothing() -> None:
    asked = [Message(role="user", content="[cron:7 tea] Put the kettle on.\n\nRuntime: agent=a | sessionId=s | host=h")]
    assert session_facts({"session_id": "n:2"}, {}, TurnKind.MAIN, asked) == SessionFacts(
        session="n", kind=TurnKind.SIDE, reason="a scheduled job", ends=False, group=None
    )
    assert session_facts({}, {}, TurnKind.MAIN, asked).session == "s"
