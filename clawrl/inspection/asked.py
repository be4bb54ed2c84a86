"""The filters of a request for turns, from its query. A value that makes no sense is one clear error."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, TurnState
from clawrl.serving.errors import invalid_request, quoted

MOST_NUMBER = 2**53
Value = TypeVar("Value", bound=enum.StrEnum)


def turn_filter(query: Mapping[str, str]) -> TurnFilter:
    """Raises `ApiError` (400). Fields that are not known here are somebody else's."""
    state, reason = _one_of(TurnState, query, "state"), _one_of(DropReason, query, "reason")
    if reason is not None and state not in (None, TurnState.DROPPED):
        raise invalid_request(f"only dropped turns have a reason; leave out state={state}, or reason", "reason")
    return TurnFilter(
        state=state,
        reason=reason,
        session=query.get("session") or None,
        owner=query.get("owner") or None,
        version=whole_number(query, "version"),
        step=whole_number(query, "step"),
    )


def whole_number(query: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """Raises `ApiError` (400)."""
    written = query.get(name)
    if written is None or written == "":
        return None
    # No sign, no underscore, no digits of other scripts: `int` would take them all. Nor thousands of digits.
    digits = written.lstrip("0") or "0"
    plain = written.isascii() and written.isdecimal() and len(digits) <= len(str(MOST_NUMBER))
    if not plain or not least <= int(digits) <= MOST_NUMBER:
        raise invalid_request(
            f"{name} must be a whole number from {least} to {MOST_NUMBER}, not {quoted(written)}", name
        )
    return int(digits)


def session_named(query: Mapping[str, str]) -> str:
    """Raises `ApiError` (400)."""
    name = query.get("session", "")
    if not name:
        raise invalid_request("session must name a session, as in ?session=NAME", "session")
    return name


def page_size(query: Mapping[str, str], *, usual: int, most: int) -> int:
    """Raises `ApiError` (400)."""
    asked = whole_number(query, "limit", least=1)
    if asked is not None and asked > most:
        raise invalid_request(f"limit must be between 1 and {most}", "limit")
    return usual if asked is None else asked


def switch(query: Mapping[str, str], name: str) -> bool:
    """Off where it is not there. Raises `ApiError` (400)."""
    written = query.get(name) or "false"
    if written not in ("true", "false"):
        raise invalid_request(f"{name} must be true or false, not {quoted(written)}", name)
    return written == "true"


def _one_of(kind: type[Value], query: Mapping[str, str], name: str) -> Value | None:
    written = query.get(name)
    if written is None or written == "":
        return None
    try:
        return kind(written)
    except ValueError:
        known = ", ".join(value.value for value in kind)
        raise invalid_request(f"{name} must be one of {known}, not {quoted(written)}", name) from None
