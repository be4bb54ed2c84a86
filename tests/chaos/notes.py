"""What was seen from outside: every request as its user saw it, and every death as its killer did."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tests.chaos.plan import Kind


class Outcome(enum.StrEnum):
    """``empty``: the model ended its answer without a word, which is an answer of sorts."""

    WHOLE = "whole"
    EMPTY = "empty"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNote:
    """``first_at`` is when the first piece of the answer came; only streams have one before the end."""

    session: str
    stream: bool
    asked_at: float
    ended_at: float
    outcome: Outcome
    first_at: float | None = None
    turn_id: str | None = None
    version: int | None = None
    text: str = ""
    finish_reason: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathNote:
    """``replicas`` are the policy replicas that died of it, by id."""

    number: int
    kind: Kind
    at: float
    pids: tuple[int, ...]
    replicas: tuple[str, ...] = ()
    detail: str = ""
