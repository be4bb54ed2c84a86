"""How somebody is forgotten, step by step, for whoever can run steps on a ledger: a coordinator, or a command.

Rows first, then in one go what came meanwhile and the key, the write-ahead log last. What was begun is finished by
`resume` after a crash: the names stay in the ledger until the key is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clawrl.ledger.forgetting import Begun
from clawrl.ledger.forgotten import Forgotten
from clawrl.ledger.remembering import Scope
from clawrl.ledger.store import Ledger
from clawrl.messages import TurnId

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Who or what is to be forgotten: an owner, a session (of one owner or of all), or a turn and what repeats it.

    ``asked`` names the call, where it may be made again because its answer was lost.
    """

    owner: str | None = None
    session: str | None = None
    turn_id: TurnId | None = None
    asked: str = ""


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


def forget(wanted: Wanted, *, tell: bool = True) -> Steps:
    """The report says what was there, what became of it, and which steps and versions had learned from it.

    Without ``tell`` who asks for the same is told it again, until `Ledger.told_of`.
    """
    begun: Begun = yield Step(
        run=lambda ledger: ledger.begin_forgetting(
            owner=wanted.owner, session=wanted.session, turn_id=wanted.turn_id, asked=wanted.asked
        )
    )
    return (yield from _finish(begun.scopes, begun.ids, tell=tell))


def resume() -> Steps:
    """Whatever a crash left half done. Who asks again is told of it."""
    scopes: list[Scope] = yield Step(run=lambda ledger: ledger.forgetting_under_way())
    return (yield from _finish(scopes, [scope.id for scope in scopes], tell=False))


def _finish(scopes: Sequence[Scope], ids: Sequence[int], *, tell: bool) -> Steps:
    for scope in scopes:
        yield from _delete(scope)
    emptied = not ids
    for _ in range(_TRIES if ids else 0):
        if emptied := (yield Step(run=lambda ledger: ledger.empty_log(), alone=True)):
            break
    found, versions = yield Step(run=lambda ledger: ledger.forgotten(ids, tell=tell))
    return _report(found, versions, log_emptied=emptied)


def _delete(scope: Scope) -> Generator[Step, Any, None]:
    while (yield Step(run=lambda ledger: ledger.forget_some(scope))) is not None:
        pass
    yield Step(run=lambda ledger: ledger.end_forgetting(scope), alone=True)


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


def _report(found: Forgotten, versions: Sequence[int], *, log_emptied: bool) -> dict[str, Any]:
    return {
        "found": found.anything,
        "turns": found.turns,
        "dropped": found.dropped,
        "unanswered": found.unanswered,
        "evidence_of": found.evidence,
        "leases_voided": found.leases,
        "steps": sorted(found.steps),
        "evidence_steps": sorted(found.evidence_steps),
        "versions": list(versions),
        "keys_deleted": found.keys,
        "log_emptied": log_emptied,
    }
