"""Deleting what people said: all of a user's, a session's, or a turn with everything that repeats it.

What is left of a turn that nobody learned from is its count. One that is in a training step, or in the lease of one
whose step may be under way, keeps an empty row, so that the step's history stays whole: should an older checkpoint be
restored it is dropped as ``forgotten`` where others are trained again. A lease that was not confirmed yet is void, so
that the trainer's fence refuses the batch. A turn that was on its way is dropped as ``forgotten``.

A turn's words lie in its own rows, in the history of the requests after it in its session, and in the evidence and the
judgement of the answer before it. So these requests are forgotten with it, and that answer keeps its own text alone and
trains no more. They also lie in what teachers of other sessions were told as hints: these turns are taught anew, see
`clawrl.ledger.unteaching`.

Done in batches, each a transaction, so that serving goes on; what was begun is listed by `remembering.under_way`. Who
is forgotten may go on talking meanwhile: a batch takes what the ledger knew at the beginning, and `the_rest`, which
nothing may come between, what came since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clawrl.ledger import hint_uses, hints, key_tags, learned, leases, remembering
from clawrl.ledger.blanks import silence_judge, strip
from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.ledger.forgotten import ASKED, EVIDENCE, NO_KEY, Forgotten
from clawrl.ledger.moves import move
from clawrl.ledger.permission import keep_wishes
from clawrl.ledger.remembering import Call, Scope
from clawrl.ledger.states import HELD, dropped
from clawrl.ledger.unteaching import unteach
from clawrl.ledger.upkeep import retire
from clawrl.messages import DropReason, TurnId, TurnState

BATCH = 200
_NOTHING = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """``scopes`` are to be worked through; ``ids`` are what the report is about, some of which may be over."""

    scopes: tuple[Scope, ...]
    ids: tuple[int, ...]


def begin(
    db: Database,
    owner: str | None,
    named: Sequence[tuple[str, str]],
    turn_id: TurnId | None,
    call: Call,
) -> Begun:
    """What is to be forgotten; from now on nothing more of it is recorded.

    A turn, or ``named`` sessions by owner and name, or all of an owner, whom nobody need know. Asked again by a
    ``call`` that lost its answer, it is what that one began. What an earlier call for the same began and told nobody
    of is part of it.
    """
    ids = remembering.of_call(db, call)
    if not ids:
        ids = remembering.untold(db, call)
        for each in _wanted(db, owner, named, turn_id):
            ids.append(remembering.remember(db, *each, call))
    return Begun(scopes=tuple(remembering.under_way(db, ids)), ids=tuple(ids))


def _wanted(
    db: Database, owner: str | None, named: Sequence[tuple[str, str]], turn_id: TurnId | None
) -> list[tuple[str, str | None, float]]:
    """Owner, session, and since when."""
    if turn_id is not None:
        row = db.one("SELECT owner, session, arrived_at FROM arrivals WHERE turn_id = ?", turn_id)
        known = row is not None and row["owner"] != NOBODY
        return [(row["owner"], row["session"], row["arrived_at"])] if row is not None and known else []
    if named or owner is None:
        # What is left of those who were forgotten cannot be forgotten once more.
        return [(whose, session, _NOTHING) for whose, session in named if whose != NOBODY]
    return [] if owner == NOBODY else [(owner, None, _NOTHING)]


def some(db: Database, scope: Scope) -> Forgotten | None:
    """At most a batch; ``None`` when nothing is left of what was there when it was begun."""
    rows = _rows(db, scope, " AND a.noted_at <= ? LIMIT ?", scope.until, BATCH)
    return _take(db, scope, rows) if rows else None


def the_rest(db: Database, scope: Scope) -> None:
    """What came since it was begun, whatever time is stamped on it, and what outlives its turns.

    For a user their key has to go right after this is on disk, before anybody else uses it.
    """
    _take(db, scope, _rows(db, scope, ""))
    remembering.extend(db, scope)
    if scope.session is None:
        for table in ("hints", "hint_uses"):
            db.execute(f"DELETE FROM {table} WHERE owner = ?", scope.owner)
        keep_wishes(db, scope.owner, None)
        key_tags.forget(db, scope.owner)
        # Steps of turns that were pruned long ago.
        steps = learned.take_out(db, scope.owner)
        remembering.note(db, scope, Forgotten(steps=steps, keys=_keys(db, scope)))
    else:
        remembering.note(db, scope, _take_back_hints_of_the_pruned(db, scope))
        if not scope.since:
            keep_wishes(db, scope.owner, scope.session)


def _keys(db: Database, scope: Scope) -> int:
    """One that will be deleted and is not counted yet: this may be done again after a crash."""
    vault = db.codec.keyed
    return int(vault is not None and vault.has_key(scope.owner) and not remembering.found(db, [scope.id]).keys)


def _rows(db: Database, scope: Scope, more: str, *values: float) -> list[sqlite3.Row]:
    narrowed = "" if scope.session is None else " AND a.session = ?"
    return db.rows(
        "SELECT a.turn_id, a.arrived_at, a.noted_at, t.state FROM arrivals a LEFT JOIN turns t USING (turn_id)"
        f" WHERE a.owner = ?{narrowed} AND a.arrived_at >= ?{more}",
        *((scope.owner,) if scope.session is None else (scope.owner, scope.session)),
        scope.since,
        *values,
    )


def _take(db: Database, scope: Scope, rows: Sequence[sqlite3.Row]) -> Forgotten:
    # Evidence for an answer that stays can only come from where less than the whole session goes.
    result = _take_back_evidence(db, scope, [row["turn_id"] for row in rows]) if scope.since else Forgotten()
    if scope.session is not None:
        result += _take_back_hints(db, [row["turn_id"] for row in rows])
    for row in rows:
        result += _unanswered(db, row["turn_id"]) if row["state"] is None else forget_turn(db, row["turn_id"], ASKED)
    lead = max((row["arrived_at"] - row["noted_at"] for row in rows), default=0.0)
    remembering.note(db, scope, result, lead)
    return result


def forget_unreadable(db: Database, turn_id: TurnId) -> Forgotten:
    """A turn, or a request, whose key is gone."""
    known = db.scalar("SELECT 1 FROM turns WHERE turn_id = ?", turn_id)
    taken_back = _take_back_hints(db, [turn_id])
    return taken_back + (_unanswered(db, turn_id) if known is None else forget_turn(db, turn_id, NO_KEY))


def forget_turn(db: Database, turn_id: TurnId, why: str) -> Forgotten:
    was = _place(db, turn_id)
    voided = _leave(db, turn_id, was[0], why)
    state, reason, step = _place(db, turn_id)
    steps = learned.steps_of(db, turn_id) | ({step} if step is not None else set())
    in_flight = state is TurnState.DROPPED and was[0] is not TurnState.DROPPED
    if state in HELD or in_flight or reason is DropReason.FORGOTTEN:
        strip(db, turn_id, keep_judgement=state in HELD)
    else:
        retire(db, turn_id)
    return Forgotten(
        turns=1,
        dropped=int(in_flight),
        deleted=int(state is TurnState.DROPPED and not in_flight),
        leases=voided,
        steps=frozenset(steps),
    )


def _leave(db: Database, turn_id: TurnId, state: TurnState, why: str) -> int:
    """Out of everything that may still learn from it; returns how many leases that made void."""
    db.execute("UPDATE turns SET forgotten = 1 WHERE turn_id = ? AND state != 'dropped'", turn_id)
    if state is TurnState.LEASED:
        lent = db.one(
            "SELECT l.lease_id, l.status FROM turns t JOIN leases l USING (lease_id) WHERE t.turn_id = ?", turn_id
        )
        if lent is not None and lent["status"] == "open":
            # Back in the queue, where a forgotten turn is dropped.
            leases.give_back(db, lent["lease_id"], "a turn of the lease was forgotten")
            return 1
    elif state not in HELD and state is not TurnState.DROPPED:
        move(db, turn_id, dropped(DropReason.FORGOTTEN), why)
    return 0


def _take_back_evidence(db: Database, scope: Scope, turn_ids: Collection[TurnId]) -> Forgotten:
    """From the answers before the first turn that is forgotten."""
    result = Forgotten()
    for turn_id in turn_ids:
        for row in db.rows(
            "SELECT e.turn_id, a.owner FROM evidence e JOIN arrivals a USING (turn_id)"
            " WHERE e.from_turn = ? AND a.arrived_at < ?",
            turn_id,
            scope.since,
        ):
            parent = row["turn_id"]
            voided = _leave(db, parent, _place(db, parent)[0], EVIDENCE)
            state, _, step = _place(db, parent)
            for table in ("evidence", "targets", "hint_uses"):
                db.execute(f"DELETE FROM {table} WHERE turn_id = ?", parent)
            result += _take_back_hints(db, [parent])
            silence_judge(db, parent, row["owner"], keep=True)
            taught = learned.steps_of(db, parent) | ({step} if step is not None and state in HELD else set())
            result += Forgotten(evidence=1, leases=voided, evidence_steps=frozenset(taught))
    return result


def _take_back_hints(db: Database, turn_ids: Collection[TurnId]) -> Forgotten:
    """What these turns taught others by hints."""
    for turn_id in turn_ids:
        hints.forget(db, turn_id)
    return _untaught(db, hint_uses.of_turns(db, turn_ids))


def _take_back_hints_of_the_pruned(db: Database, scope: Scope) -> Forgotten:
    """Hints outlive their turns."""
    assert scope.session is not None
    gone = "owner = ? AND session = ? AND at >= ?"
    if scope.since:
        gone += " AND NOT EXISTS (SELECT 1 FROM arrivals a WHERE a.turn_id = {source})"
    values = (scope.owner, scope.session, scope.since)
    db.execute(f"DELETE FROM hints WHERE {gone.format(source='hints.turn_id')}", *values)
    sources = db.rows(f"SELECT DISTINCT source FROM hint_uses WHERE {gone.format(source='hint_uses.source')}", *values)
    return _untaught(db, hint_uses.of_turns(db, [row["source"] for row in sources]))


def _untaught(db: Database, turn_ids: Collection[TurnId]) -> Forgotten:
    untaught = unteach(db, turn_ids)
    return Forgotten(leases=untaught.leases, evidence_steps=untaught.steps)


def _unanswered(db: Database, turn_id: TurnId) -> Forgotten:
    """A request that is being answered: its turn will leave no more than its count."""
    strip(db, turn_id, keep_judgement=False)
    return Forgotten(unanswered=1)


def _place(db: Database, turn_id: TurnId) -> tuple[TurnState, DropReason | None, int | None]:
    row = db.one("SELECT state, reason, step FROM turns WHERE turn_id = ?", turn_id)
    assert row is not None
    return TurnState(row["state"]), DropReason(row["reason"]) if row["reason"] else None, row["step"]
