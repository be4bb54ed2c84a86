"""A person's explicit opinion of a turn: it outranks the judge, as long as nobody is learning from the turn yet.

In time, the turn goes (back) to the judge with the feedback in its case, and what was concluded without
it is withdrawn. A person who then goes on talking adds to it: the first request that continues the turn
still brings its evidence, and opens the case once more. Too late (the turn is lent or trained, or was
dropped for a reason that no opinion changes), the feedback is only written down.

The feedback that arrives last replaces earlier ones; the same opinion again, while it stands, changes
nothing. Of a turn that was forgotten nothing is written down. Who may speak about a turn is the caller's
to decide.
"""

from __future__ import annotations

import sqlite3

from clawrl.ledger.cases import judge_request, taken_feedback
from clawrl.ledger.codec import NOBODY, KeyGone
from clawrl.ledger.database import Database
from clawrl.ledger.judgements import reopen
from clawrl.ledger.moves import state_of
from clawrl.ledger.states import is_legal
from clawrl.ledger.unreadable import put_away
from clawrl.ledger.views import FeedbackOutcome, FeedbackTaken
from clawrl.messages import DropReason, Feedback, TurnId, TurnKind, TurnState


def give(db: Database, feedback: Feedback) -> FeedbackTaken | None:
    turn_id = feedback.turn_id
    row = db.one("SELECT owner, kind, state, reason FROM turns WHERE turn_id = ?", turn_id)
    if row is None:
        return None
    state = TurnState(row["state"])
    if row["owner"] == NOBODY:
        return FeedbackTaken(outcome=FeedbackOutcome.TOO_LATE, state=state, to_judge=None)
    earlier = taken_feedback(db, turn_id)
    if earlier is not None and (earlier.score, earlier.comment) == (feedback.score, feedback.comment):
        return FeedbackTaken(outcome=FeedbackOutcome.TAKEN, state=state, to_judge=None)
    in_time = _in_time(row)
    outcome = FeedbackOutcome.TAKEN if in_time else FeedbackOutcome.TOO_LATE
    db.execute(
        "INSERT OR REPLACE INTO feedback (turn_id, score, comment, given_at, outcome) VALUES (?, ?, ?, ?, ?)",
        turn_id,
        feedback.score,
        db.codec.pack_json(row["owner"], feedback.comment),
        feedback.given_at,
        outcome,
    )
    if not in_time:
        return FeedbackTaken(outcome=outcome, state=state, to_judge=None)
    try:
        reopen(db, turn_id, "feedback")
        return FeedbackTaken(outcome=outcome, state=TurnState.JUDGING, to_judge=judge_request(db, turn_id))
    except KeyGone as error:
        put_away(db, turn_id, error)
        db.execute("UPDATE feedback SET outcome = ? WHERE turn_id = ?", FeedbackOutcome.TOO_LATE, turn_id)
        return FeedbackTaken(outcome=FeedbackOutcome.TOO_LATE, state=state_of(db, turn_id) or state, to_judge=None)


def lacks_evidence(db: Database, turn_id: TurnId) -> bool:
    """Whether this turn has taken feedback, no request has brought evidence, and it is not too late for some."""
    row = db.one("SELECT kind, state, reason FROM turns WHERE turn_id = ?", turn_id)
    return (
        row is not None
        and _in_time(row)
        and db.scalar("SELECT 1 FROM feedback WHERE turn_id = ? AND outcome = 'taken'", turn_id) is not None
        and db.scalar("SELECT 1 FROM evidence WHERE turn_id = ?", turn_id) is None
    )


def _in_time(row: sqlite3.Row) -> bool:
    state = TurnState(row["state"])
    reason = None if row["reason"] is None else DropReason(row["reason"])
    again = state is TurnState.JUDGING or is_legal(state, TurnState.JUDGING, reason)
    return again and TurnKind(row["kind"]) is TurnKind.MAIN
