"""Deleting what people said: all of a user's, a session's, or a turn with everything that repeats it.

What is left of a turn that nobody learned from is its count. One that is in a training step, or in the lease of one
whose step may be under way, keeps an empty row, so that the step's history stays whole: should an older checkpoint be
restored it is dropped as ``forgotten`` where others are trained again. A lease that was not confirmed yet is void, so
that the trainer's fence refuses the batch. A turn that was on its way is dropped as ``forgotten``.

A turn's words lie in its own rows, in the history of the requests after it in its session, and in the evidence and the
judgement of the answer before it. So these requests are forgotten with it, and that answer keeps its own text alone and
trains no more. They also lie in what teachers of other sessions were told as hints: these turns are taught anew, see
`clawrl.ledger.unteaching`.

Done in batches, each a transaction, so that serving goes on; what was begun is listed by `remembering.under_way`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from clawrl.ledger import hint_uses, hints, learned, leases
from clawrl.ledger.blanks import silence_judge, strip
from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.ledger.moves import move
from clawrl.ledger.permission import keep_wishes
from clawrl.ledger.remembering import Scope, ended, remember
from clawrl.ledger.states import HELD, dropped
from clawrl.ledger.unteaching import unteach
from clawrl.ledger.upkeep import retire
from clawrl.messages import DropReason, TurnId, TurnState

BATCH = 200
_NOTHING = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What became of some turns: how many there were, were on their way, and are deleted but for their count.

    ``steps`` learned from their answers; ``evidence_steps`` from answers that their words were evidence or hints for.
    """

    turns: int = 0
    dropped: int = 0
    deleted: int = 0
    unanswered: int = 0
    evidence: int = 0
    leases: int = 0
    steps: frozenset[int] = frozenset()
    evidence_steps: frozenset[int] = frozenset()

    def __add__(self, other: Forgotten) -> Forgotten:
        return Forgotten(
            turns=self.turns + other.turns,
            dropped=self.dropped + other.dropped,
            deleted=self.deleted + other.deleted,
            unanswered=self.unanswered + other.unanswered,
            evidence=self.evidence + other.evidence,
            leases=self.leases + other.leases,
            steps=self.steps | other.steps,
            evidence_steps=self.evidence_steps | other.evidence_steps,
        )


def begin(db: Database, owner: str | None, session: str | None, turn_id: TurnId | None) -> list[Scope]:
    """What is to be forgotten; from now on nothing more of it is recorded. Empty if there is no such turn or session.

    A session without an owner is that of everybody who has one of this name. A user need not be known.
    """
    now = db.clock()
    scopes = []
    if turn_id is not None:
        row = db.one("SELECT owner, session, arrived_at FROM arrivals WHERE turn_id = ?", turn_id)
        if row is not None and row["owner"] != NOBODY:
            scopes = [Scope(owner=row["owner"], session=row["session"], since=row["arrived_at"], until=now)]
    elif session is not None:
        owners = db.rows("SELECT DISTINCT owner FROM arrivals WHERE session = ? AND owner != ?", session, NOBODY)
        names = [row["owner"] for row in owners if owner is None or row["owner"] == owner]
        scopes = [Scope(owner=name, session=session, since=_NOTHING, until=now) for name in names]
    elif owner is not None:
        scopes = [Scope(owner=owner, session=None, since=_NOTHING, until=now)]
    for scope in scopes:
        remember(db, scope)
    return scopes


def some(db: Database, scope: Scope) -> Forgotten | None:
    """At most a batch; ``None`` when nothing is left."""
    narrowed = "" if scope.session is None else " AND a.session = ?"
    rows = db.rows(
        "SELECT a.turn_id, t.state FROM arrivals a LEFT JOIN turns t USING (turn_id)"
        f" WHERE a.owner = ?{narrowed} AND a.arrived_at BETWEEN ? AND ? LIMIT ?",
        *((scope.owner,) if scope.session is None else (scope.owner, scope.session)),
        scope.since,
        scope.until,
        BATCH,
    )
    if not rows:
        return None
    # Evidence for an answer that stays can only come from where less than the whole session goes.
    result = _take_back_evidence(db, scope, [row["turn_id"] for row in rows]) if scope.since else Forgotten()
    if scope.session is not None:
        result += _take_back_hints(db, [row["turn_id"] for row in rows])
    for row in rows:
        result += _unanswered(db, row["turn_id"]) if row["state"] is None else _forget(db, row["turn_id"])
    return result


def end(db: Database, scope: Scope) -> Forgotten:
    """Nothing is left of it but what outlives its turns. The steps are those of turns that were pruned long ago."""
    if scope.session is None:
        taken_back = Forgotten()
        for table in ("hints", "hint_uses"):
            db.execute(f"DELETE FROM {table} WHERE owner = ?", scope.owner)
        keep_wishes(db, scope.owner, None)
        steps = learned.take_out(db, scope.owner)
    else:
        steps = frozenset()
        taken_back = _take_back_hints_of_the_pruned(db, scope)
        if not scope.since:
            keep_wishes(db, scope.owner, scope.session)
    ended(db, scope)
    return taken_back + Forgotten(steps=steps)


def _forget(db: Database, turn_id: TurnId) -> Forgotten:
    was = _place(db, turn_id)
    voided = _leave(db, turn_id, was[0], "")
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
            voided = _leave(db, parent, _place(db, parent)[0], "its evidence was forgotten")
            state, _, step = _place(db, parent)
            for table in ("evidence", "targets", "hint_uses"):
                db.execute(f"DELETE FROM {table} WHERE turn_id = ?", parent)
            result += _take_back_hints(db, [parent])
            silence_judge(db, parent, row["owner"], keep=True)
            learned = frozenset() if step is None else frozenset({step})
            result += Forgotten(evidence=1, leases=voided, evidence_steps=learned if state in HELD else frozenset())
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
