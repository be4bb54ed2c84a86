"""Everything that the ledger knows of one turn, for a person who asks what became of it.

A read of one turn through its id; the texts come through the codec like everywhere else. Where they cannot be had (they
were not kept, or the key of their owner is gone) the rest is told all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from clawrl.ledger import judgements, moves, refusals, turns
from clawrl.ledger.counts import ROW_SQL, step_row, turn_row
from clawrl.ledger.database import Database
from clawrl.ledger.views import StepRow, Transition, TurnRow
from clawrl.messages import Feedback, Judgement, Message, TeacherTargets, Turn, TurnId, TurnState, Withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What came after the answer, and the turn whose request brought it."""

    from_turn: TurnId
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a person said of the answer on purpose; ``taken``: in time to be learned from."""

    feedback: Feedback
    taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """The private part. Where nothing came after the answer, nobody judged or nobody taught, that is absent.

    ``refusal`` is what a filter said of it.
    """

    turn: Turn
    evidence: Evidence | None
    said: Said | None
    judgement: Judgement | None
    targets: TeacherTargets | None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLife:
    """``text`` is absent where it is gone. ``step`` is the step that the turn is in, if that was taken;
    ``lease_until`` the deadline of a lease that is not confirmed. ``ahead`` counts the turns before it in its state.
    """

    row: TurnRow
    text: TurnText | None
    transitions: tuple[Transition, ...]
    step: StepRow | None
    lease_until: float | None
    ahead: int


def life(db: Database, turn_id: TurnId) -> TurnLife | None:
    """``None`` for a turn that is not known, or no longer."""
    found = db.one(f"{ROW_SQL} WHERE t.turn_id = ?", turn_id)
    if found is None:
        return None
    row = turn_row(db, found)
    return TurnLife(
        row=row,
        text=texts_if_any(db, turn_id),
        transitions=tuple(moves.transitions(db, turn_id)),
        step=None if row.step is None else step_taken(db, row.step),
        lease_until=db.scalar(
            "SELECT l.deadline FROM turns t JOIN leases l USING (lease_id) WHERE t.turn_id = ? AND l.status = 'open'",
            turn_id,
        ),
        ahead=_ahead(db, row),
    )


def texts_if_any(db: Database, turn_id: TurnId) -> TurnText | None:
    try:
        return _texts(db, turn_id)
    except Exception:
        # Whatever a vault says that has lost the key: what became of the turn is told without its words.
        return None


def _texts(db: Database, turn_id: TurnId) -> TurnText | None:
    turn = turns.load(db, turn_id)
    if turn is None or turn.withheld is Withheld.ALL:
        return None
    return TurnText(
        turn=turn,
        evidence=_evidence(db, turn_id),
        said=_said(db, turn_id),
        judgement=judgements.load(db, turn_id),
        targets=judgements.load_targets(db, turn_id),
        refusal=refusals.load(db, turn_id),
    )


def _evidence(db: Database, turn_id: TurnId) -> Evidence | None:
    row = db.one("SELECT e.*, t.owner FROM evidence e JOIN turns t USING (turn_id) WHERE turn_id = ?", turn_id)
    if row is None:
        return None
    return Evidence(from_turn=row["from_turn"], messages=db.codec.unpack_messages(row["owner"], row["messages"]))


def _said(db: Database, turn_id: TurnId) -> Said | None:
    row = db.one("SELECT f.*, t.owner FROM feedback f JOIN turns t USING (turn_id) WHERE turn_id = ?", turn_id)
    if row is None:
        return None
    given = Feedback(
        turn_id=turn_id,
        score=row["score"],
        comment=db.codec.unpack_json(row["owner"], row["comment"]),
        given_at=row["given_at"],
    )
    return Said(feedback=given, taken=row["outcome"] == "taken")


def step_taken(db: Database, step: int) -> StepRow | None:
    row = db.one("SELECT * FROM steps WHERE step = ? AND state != 'undone' ORDER BY id DESC LIMIT 1", step)
    return None if row is None else step_row(row)


def _ahead(db: Database, row: TurnRow) -> int:
    if row.state not in (TurnState.JUDGING, TurnState.QUEUED):
        return 0
    # Spelt out, so that the index of just these turns is found.
    return int(db.scalar(f"SELECT count(*) FROM turns WHERE state = '{row.state.value}' AND seq < ?", row.seq))
