"""How somebody is forgotten, step by step, for whoever can run steps on a ledger: a coordinator, or a command.

Rows first, the key then, the write-ahead log last. What was begun is finished by `resume` after a crash: the names stay
in the ledger until the key is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from clawrl.ledger.forgetting import Forgotten
from clawrl.ledger.remembering import Scope
from clawrl.ledger.store import Ledger
from clawrl.messages import TurnId

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Who or what is to be forgotten: an owner, a session (of one owner or of all), or a turn and what repeats it."""

    owner: str | None = None
    session: str | None = None
    turn_id: TurnId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``alone``: not in a transaction."""

    run: Callable[[Ledger], Any]
    alone: bool = False


Steps = Generator[Step, Any, dict[str, Any]]


class RunsSteps(Protocol):
    """A `clawrl.ledger.writer.LedgerThread`, for one."""

    def run(self, function: Callable[[Ledger], Any]) -> Awaitable[Any]: ...

    def run_alone(self, function: Callable[[Ledger], Any]) -> Awaitable[Any]: ...


def forget(wanted: Wanted) -> Steps:
    """The report says what was there, what became of it, and which steps and versions had learned from it."""
    scopes: list[Scope] = yield Step(
        run=lambda ledger: ledger.begin_forgetting(owner=wanted.owner, session=wanted.session, turn_id=wanted.turn_id)
    )
    return (yield from _finish(scopes))


def resume() -> Steps:
    """Whatever a crash left half done."""
    scopes: list[Scope] = yield Step(run=lambda ledger: ledger.forgetting_under_way())
    return (yield from _finish(scopes)) if scopes else _report(Forgotten(), 0, (), log_emptied=True)


def _finish(scopes: list[Scope]) -> Steps:
    result, shredded = Forgotten(), 0
    for scope in scopes:
        part, deleted = yield from _delete(scope)
        result, shredded = result + part, shredded + deleted
    emptied = False
    for _ in range(_TRIES):
        if emptied := (yield Step(run=lambda ledger: ledger.empty_log(), alone=True)):
            break
    versions = yield Step(run=lambda ledger: ledger.versions_with(result.steps | result.evidence_steps))
    return _report(result, shredded, versions, log_emptied=emptied)


def _delete(scope: Scope) -> Generator[Step, Any, tuple[Forgotten, int]]:
    result, shredded = Forgotten(), 0
    while (batch := (yield Step(run=lambda ledger: ledger.forget_some(scope)))) is not None:
        result += batch
    if scope.session is None:
        shredded = yield Step(run=lambda ledger: int(ledger.shred(scope.owner)))
    result += yield Step(run=lambda ledger: ledger.end_forgetting(scope))
    return result, shredded


def run_steps(ledger: Ledger, steps: Steps) -> dict[str, Any]:
    """On a ledger that nobody else writes to."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            report: dict[str, Any] = end.value
            return report
        answer = step.run(ledger)


async def await_steps(db: RunsSteps, steps: Steps) -> dict[str, Any]:
    """Between the calls of others."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            report: dict[str, Any] = end.value
            return report
        answer = await (db.run_alone(step.run) if step.alone else db.run(step.run))


def _report(result: Forgotten, shredded: int, versions: Any, *, log_emptied: bool) -> dict[str, Any]:
    return {
        "found": bool(result.turns or result.unanswered or result.steps or shredded),
        "turns": result.turns,
        "dropped": result.dropped,
        "unanswered": result.unanswered,
        "evidence_of": result.evidence,
        "leases_voided": result.leases,
        "steps": sorted(result.steps),
        "evidence_steps": sorted(result.evidence_steps),
        "versions": list(versions),
        "keys_deleted": shredded,
        "log_emptied": log_emptied,
    }
