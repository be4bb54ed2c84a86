"""Lending judged turns to the trainer, one lease for one optimizer step.

The turns whose answer began first are lent first, not those that came to the queue first: where more comes than
can be trained, some will grow too old, and that must not be the long answers because they take longer to write. But
the queued answers of one group to one request go together, at the place of the oldest of them: a limit may cut one
group, the last one, and only where the batch would be too small without it; nothing else does. While another answer
of the group may still come to the queue, they wait for it, up to ``GROUP_WAIT_S``.

A lease is on disk, with its step and deadline, before anybody sees it. Its life: ``open`` (expires),
``confirmed`` (the fence right before the optimizer step; does not expire), ``applied``; or ``closed``
when it expired, ran empty, or its run was replaced. Only the newest registered run may hold one. A
trainer that dies after ``confirm`` leaves the question open; `clawrl.ledger.runs.restored` answers it.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from clawrl.ledger import judgements, staleness, turns
from clawrl.ledger.codec import KeyGone, pack_stats
from clawrl.ledger.database import Database
from clawrl.ledger.forgotten import ASKED
from clawrl.ledger.judgements import paused
from clawrl.ledger.moves import move
from clawrl.ledger.runs import FencedRun, current_run, settle
from clawrl.ledger.states import QUEUED, dropped, held
from clawrl.ledger.unreadable import put_away
from clawrl.ledger.views import JudgedTurn, LeasedTurns
from clawrl.messages import DropReason, TurnId, TurnState

GROUP_WAIT_S = 60.0
"""Answers are compared within one step, hence the wait; but one that nobody ever replies to must not hold up the
others for long, and a judge answers well within this time."""


class StepTaken(ValueError):
    """A lease was asked for a step that the run has already taken or restored."""


def lease(
    db: Database, run_id: str, step: int, limit: int, minimum: int, now: float, timeout_s: float
) -> LeasedTurns | None:
    run = _demand_current(db, run_id)
    if not 1 <= minimum <= limit:
        raise ValueError(f"a lease of at least {minimum} and at most {limit} turns")
    expire(db, now)
    if paused(db) is not None:
        return None
    # The reply to an earlier call may have been lost: the same question has the same answer.
    live = db.one(
        "SELECT * FROM leases WHERE run_id = ? AND step = ? AND status IN ('open', 'confirmed')", run_id, step
    )
    if live is not None:
        _drop_forgotten(db, live["lease_id"])
        again, _ = _leased(db, live)
        if again.turns:
            return again
        _set_status(db, live["lease_id"], "closed")
    if step <= run["taken_step"]:
        raise StepTaken(f"run {run_id} asks for step {step}, but step {run['taken_step']} is behind it")
    while len(chosen := _oldest(db, limit, minimum, now)) >= minimum:
        given, unreadable = _lend(db, chosen, run_id, step, now + timeout_s)
        if not unreadable:
            return given
        give_back(db, given.lease_id, "a turn of the lease could not be read")
    return None


def _lend(db: Database, chosen: Sequence[TurnId], run_id: str, step: int, deadline: float) -> tuple[LeasedTurns, int]:
    lease_id = uuid.uuid4().hex
    db.execute(
        "INSERT INTO leases (lease_id, run_id, step, deadline, status) VALUES (?, ?, ?, ?, 'open')",
        lease_id,
        run_id,
        step,
        deadline,
    )
    for turn_id in chosen:
        move(db, turn_id, held(TurnState.LEASED, step, lease_id))
    given = _find(db, lease_id)
    assert given is not None
    return _leased(db, given)


def drop_stale(db: Database, run_id: str, step: int, most_behind: int, now: float) -> int:
    """What is too old for ``step`` leaves the queue, also what an expired lease gives back to it now."""
    _demand_current(db, run_id)
    expire(db, now)
    return staleness.drop_stale(db, step, most_behind)


def lent_step(db: Database) -> int | None:
    """The step for which the current run holds a lease, if it does."""
    run = current_run(db)
    if run is None:
        return None
    step: int | None = db.scalar(
        "SELECT step FROM leases WHERE run_id = ? AND status IN ('open', 'confirmed') ORDER BY step DESC LIMIT 1",
        run["run_id"],
    )
    return step


def confirm(db: Database, lease_id: str, run_id: str, now: float) -> bool:
    """True exactly if the optimizer step of this lease may be taken now."""
    lent = _of_current_run(db, lease_id, run_id)
    if lent is None or lent["status"] not in ("open", "confirmed"):
        return False
    if lent["status"] == "open":
        if now > lent["deadline"]:
            return False
        _set_status(db, lease_id, "confirmed")
    return True


def applied(db: Database, lease_id: str, run_id: str, stats: Mapping[str, Any]) -> bool:
    """The confirmed lease's step is in the trainer's weights."""
    lent = _of_current_run(db, lease_id, run_id)
    if lent is None or lent["status"] not in ("confirmed", "applied"):
        return False
    if lent["status"] == "applied":
        return True
    apply(db, lent, stats)
    step = lent["step"]
    db.execute("UPDATE runs SET taken_step = max(taken_step, ?) WHERE run_id = ?", step, run_id)
    checkpointed = db.scalar("SELECT checkpointed_step FROM runs WHERE run_id = ?", run_id)
    if step <= checkpointed:
        # The checkpoint's report overtook this one.
        settle(db, step)
    return True


def apply(db: Database, lent: sqlite3.Row, stats: Mapping[str, Any]) -> None:
    """Moves what is left of a lease to ``applied`` and writes its step down."""
    lease_id, step = lent["lease_id"], lent["step"]
    learned = db.rows(
        "SELECT turn_id, reward FROM turns JOIN judgements USING (turn_id)"
        " WHERE state = 'leased' AND lease_id = ? ORDER BY seq",
        lease_id,
    )
    for row in learned:
        move(db, row["turn_id"], held(TurnState.APPLIED, step, lease_id))
    rewards = [row["reward"] for row in learned if row["reward"] is not None]
    if rewards:
        stats = {**stats, "accepted_share": sum(reward > 0 for reward in rewards) / len(rewards)}
    db.execute(
        "INSERT OR REPLACE INTO steps (run_id, step, state, turns, reward_mean, stats, at)"
        " VALUES (?, ?, 'applied', ?, ?, ?, ?)",
        lent["run_id"],
        step,
        len(learned),
        sum(rewards) / len(rewards) if rewards else None,
        pack_stats(stats),
        db.clock(),
    )
    _set_status(db, lease_id, "applied")


def expire(db: Database, now: float) -> int:
    """Turns of unconfirmed leases past their deadline go back to the queue; returns how many."""
    overdue = db.rows("SELECT lease_id FROM leases WHERE status = 'open' AND deadline < ?", now)
    return sum(give_back(db, row["lease_id"], "lease expired") for row in overdue)


def give_back(db: Database, lease_id: str, why: str) -> int:
    """Closes a lease; what it still holds goes back to the queue, in its old order."""
    lent = db.rows("SELECT turn_id FROM turns WHERE state = 'leased' AND lease_id = ?", lease_id)
    for row in lent:
        move(db, row["turn_id"], QUEUED, why)
    _set_status(db, lease_id, "closed")
    return len(lent)


def drop_leased(db: Database, lease_id: str, turn_id: TurnId, reason: DropReason) -> bool:
    """Takes one turn out of a lease for good; false if the lease no longer holds it."""
    if not db.scalar("SELECT 1 FROM turns WHERE turn_id = ? AND state = 'leased' AND lease_id = ?", turn_id, lease_id):
        return False
    move(db, turn_id, dropped(reason))
    return True


def _oldest(db: Database, limit: int, minimum: int, now: float) -> list[TurnId]:
    """Up to ``limit`` queued turns, oldest first; the siblings of a group stand where their oldest stands.

    A group is ready when none of its answers is undecided, or when one has waited in the queue for long enough.
    """
    sibling = "SELECT 1 FROM turns s WHERE s.owner = q.owner AND s.group_id = q.group_id"
    sibling += " AND s.messages_hash = q.messages_hash"
    ready = db.rows(
        "SELECT turn_id, owner, group_id, messages_hash FROM turns q INDEXED BY turns_queued_oldest"
        " WHERE state = 'queued' AND (group_id IS NULL"
        f" OR NOT EXISTS ({sibling} AND s.state IN ('awaiting_next', 'judging', 'judged'))"
        f" OR EXISTS ({sibling} AND s.state = 'queued' AND s.state_at <= ?))"
        " ORDER BY oldest_version, started_at, seq LIMIT ?",
        now - GROUP_WAIT_S,
        limit,
    )
    # The place at which the turn's group begins. A sibling only ever moves forward, so that nothing beyond the first
    # ``limit`` can come by itself.
    chosen: dict[TurnId, int] = {}
    for row in ready:
        place = chosen.setdefault(row["turn_id"], len(chosen))
        if row["group_id"] is not None:
            siblings = db.rows(
                "SELECT turn_id FROM turns WHERE state = 'queued' AND owner = ? AND group_id = ? AND messages_hash = ?"
                " ORDER BY seq LIMIT ?",
                row["owner"],
                row["group_id"],
                row["messages_hash"],
                limit + 1,
            )
            for member in siblings:
                chosen.setdefault(member["turn_id"], place)
    turn_ids = list(chosen)
    if len(turn_ids) > limit and (whole := chosen[turn_ids[limit]]) >= minimum:
        return turn_ids[:whole]
    return turn_ids[:limit]


def _drop_forgotten(db: Database, lease_id: str) -> None:
    """Whoever asks for a step again has not taken it, so that nobody learns from what was forgotten meanwhile."""
    for row in db.rows("SELECT turn_id FROM turns WHERE state = 'leased' AND lease_id = ? AND forgotten", lease_id):
        move(db, row["turn_id"], dropped(DropReason.FORGOTTEN), ASKED)


def _demand_current(db: Database, run_id: str) -> sqlite3.Row:
    run = current_run(db)
    if run is None or run["run_id"] != run_id:
        raise FencedRun(f"run {run_id} is not the current one: it must report what it restored first")
    return run


def _find(db: Database, lease_id: str) -> sqlite3.Row | None:
    return db.one("SELECT * FROM leases WHERE lease_id = ?", lease_id)


def _of_current_run(db: Database, lease_id: str, run_id: str) -> sqlite3.Row | None:
    run = current_run(db)
    if run is None or run["run_id"] != run_id:
        return None
    return db.one("SELECT * FROM leases WHERE lease_id = ? AND run_id = ?", lease_id, run_id)


def _set_status(db: Database, lease_id: str, status: str) -> None:
    db.execute("UPDATE leases SET status = ? WHERE lease_id = ?", status, lease_id)


def _leased(db: Database, lent: sqlite3.Row) -> tuple[LeasedTurns, int]:
    """What the lease holds; and how many turns could not be read and were taken out of it."""
    judged, unreadable = [], 0
    for turn_id in turns.leased(db, lent["lease_id"]):
        try:
            judged.append(_judged(db, turn_id))
        except KeyGone as error:
            put_away(db, turn_id, error)
            unreadable += 1
    given = LeasedTurns(
        lease_id=lent["lease_id"],
        run_id=lent["run_id"],
        step=lent["step"],
        deadline=lent["deadline"],
        turns=tuple(judged),
    )
    return given, unreadable


def _judged(db: Database, turn_id: TurnId) -> JudgedTurn:
    turn, judgement = turns.load(db, turn_id), judgements.load(db, turn_id)
    assert turn is not None and judgement is not None
    return JudgedTurn(turn=turn, judgement=judgement, teacher=judgements.load_targets(db, turn_id))
