"""What a person may say of an answer, and how a mistake in it is answered."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.serving.errors import ApiError
from clawrl.serving.feedback import MAX_COMMENT_CHARS, parse_feedback, unknown_turn


def test_a_turn_or_a_session_is_named_and_scored() -> None:
    asked = parse_feedback({"turn_id": "t", "score": -1, "comment": "  Too formal. "}, {})
    assert (asked.turn_id, asked.session, asked.score, asked.comment) == ("t", None, -1.0, "Too formal.")
    asked = parse_feedback({"session_id": "s", "score": 0.25}, {})
    assert (asked.turn_id, asked.session, asked.score, asked.comment) == (None, "s", 0.25, "")


def test_the_session_may_come_as_a_header_unless_a_turn_is_named() -> None:
    assert parse_feedback({"score": 1}, {"X-Session-Id": "s"}).session == "s"
    asked = parse_feedback({"score": 1, "turn_id": "t"}, {"X-Session-Id": "s"})
    assert (asked.turn_id, asked.session) == ("t", None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"score": 1}, "turn_id"),
        ({"turn_id": "t"}, "score"),
        ({"turn_id": "t", "score": None}, "score"),
        ({"turn_id": "t", "score": 1.5}, "score"),
        ({"turn_id": "t", "score": -1.01}, "score"),
        ({"turn_id": "t", "score": True}, "score"),
        ({"turn_id": "t", "score": "1"}, "score"),
        ({"turn_id": 7, "score": 1}, "turn_id"),
        ({"turn_id": "t", "session_id": "s", "score": 1}, "session_id"),
        ({"turn_id": "t", "score": 1, "comment": ["x"]}, "comment"),
        ({"turn_id": "t", "score": 1, "comment": "x" * (MAX_COMMENT_CHARS + 1)}, "comment"),
        ({"turn_id": "t", "score": 1, "coment": "x"}, "coment"),
    ],
)
def test_a_mistake_is_a_400_that_names_the_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_feedback(body, {})
    assert (caught.value.status, caught.value.param) == (400, param)


def test_an_unknown_turn_is_a_404_that_names_what_was_asked_for() -> None:
    by_turn = unknown_turn(parse_feedback({"turn_id": "gone", "score": 1}, {}))
    by_session = unknown_turn(parse_feedback({"session_id": "gone", "score": 1}, {}))
    assert (by_turn.status, by_turn.param, by_turn.code) == (404, "turn_id", "turn_not_found")
    assert by_session.param == "session_id" and "'gone'" in by_session.message
