"""``POST /v1/feedback``: what a person says of an answer on purpose.

    {"turn_id": "...", "score": 1}                                the turn that the X-Clawrl-Turn-Id header named
    {"session_id": "...", "score": -1, "comment": "Too formal."}  the newest turn of a session

``score`` is in -1..1 and outranks the judge; ``comment`` is evidence for hints. Unknown fields are refused here, other
than in chat requests: a misspelt ``comment`` would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clawrl.serving.errors import ApiError, invalid_request, quoted
from clawrl.serving.fields import JsonObject, missing, number, text
from clawrl.serving.sessions import named_session

MAX_COMMENT_CHARS = 4000
_FIELDS = ("turn_id", "session_id", "score", "comment")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRequest:
    """Exactly one of ``turn_id`` and ``session`` is given."""

    turn_id: str | None
    session: str | None
    score: float
    comment: str


def parse_feedback(body: JsonObject, headers: Mapping[str, str]) -> FeedbackRequest:
    """Raises `ApiError` with the first thing wrong. Without a ``turn_id`` the session may come as a header."""
    for name in body:
        if name not in _FIELDS:
            shown = name[:64].encode(errors="replace").decode()  # half a character could not be sent back
            raise invalid_request(f"Unknown field {quoted(name)}: it takes {', '.join(_FIELDS)}.", shown)
    turn_id = text(body, "turn_id")
    named = named_session(headers, body) if turn_id is None or "session_id" in body else None
    if turn_id is not None and named is not None:
        raise invalid_request("Give 'turn_id' or 'session_id', not both.", "session_id")
    if turn_id is None and named is None:
        raise missing("turn_id")
    score = number(body, "score", -1.0, 1.0)
    if score is None:
        raise missing("score")
    comment = (text(body, "comment") or "").strip()
    if len(comment) > MAX_COMMENT_CHARS:
        raise invalid_request(
            f"Invalid 'comment': at most {MAX_COMMENT_CHARS} characters, but got {len(comment)}.", "comment"
        )
    return FeedbackRequest(turn_id=turn_id, session=named, score=score, comment=comment)


def unknown_turn(asked: FeedbackRequest) -> ApiError:
    what = f"turn {quoted(asked.turn_id)}" if asked.turn_id is not None else f"turn of session {quoted(asked.session)}"
    return ApiError(
        404,
        f"There is no {what}; it may have been removed with the oldest finished turns.",
        type="invalid_request_error",
        code="turn_not_found",
        param="turn_id" if asked.turn_id is not None else "session_id",
    )
