"""What a judge is shown: the request, the answer, what came after it, and what a person said on purpose.

A turn is a case once there is evidence or feedback. Feedback that came too late is no part of a case.
"""

from __future__ import annotations

from clawrl.ledger.database import Database
from clawrl.messages import Feedback, JudgeRequest, Message, TurnId


def judge_request(db: Database, turn_id: TurnId) -> JudgeRequest | None:
    """The case of this turn; ``None`` while there is neither evidence nor feedback.

    Feedback's comment is the last of the evidence; without evidence and comment that is empty.
    """
    row = db.one(
        "SELECT a.owner, a.new_messages, p.response_text, e.messages FROM arrivals a JOIN payloads p USING (turn_id)"
        " LEFT JOIN evidence e USING (turn_id) WHERE a.turn_id = ?",
        turn_id,
    )
    feedback = taken_feedback(db, turn_id)
    if row is None or (row["messages"] is None and feedback is None):
        return None
    owner = row["owner"]
    evidence = () if row["messages"] is None else db.codec.unpack_messages(owner, row["messages"])
    if feedback is not None and feedback.comment.strip():
        evidence += (Message(role="user", content=feedback.comment),)
    return JudgeRequest(
        turn_id=turn_id,
        request=db.codec.unpack_messages(owner, row["new_messages"]),
        response=db.codec.unpack_json(owner, row["response_text"]),
        evidence=evidence,
        feedback=feedback,
    )


def taken_feedback(db: Database, turn_id: TurnId) -> Feedback | None:
    """What a person said of this turn, if it came in time."""
    row = db.one(
        "SELECT f.*, t.owner FROM feedback f JOIN turns t USING (turn_id) WHERE turn_id = ? AND outcome = 'taken'",
        turn_id,
    )
    if row is None:
        return None
    return Feedback(
        turn_id=turn_id,
        score=row["score"],
        comment=db.codec.unpack_json(row["owner"], row["comment"]),
        given_at=row["given_at"],
    )
