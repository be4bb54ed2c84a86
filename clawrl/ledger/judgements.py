"""Verdicts, and whether they may move on to the queue.

The first judgement of a turn counts; one that comes when the turn has moved on is ignored. An
abstention never becomes a reward: it drops the turn. While submission is paused, judged turns wait as
``judged`` and ``resume`` promotes them, oldest first.
"""

from __future__ import annotations

import json
import math

from clawrl.ledger.counts import count_up
from clawrl.ledger.database import Database
from clawrl.ledger.linking import judge_request
from clawrl.ledger.moves import move, state_of
from clawrl.ledger.states import JUDGED, QUEUED, dropped
from clawrl.ledger.views import Pause
from clawrl.messages import DropReason, Judgement, JudgeRequest, TurnId, TurnState, Verdict


def awaiting_judgement(db: Database, limit: int | None) -> list[JudgeRequest]:
    """Every case that a judge still owes an answer for, oldest first."""
    rows = db.rows(
        "SELECT turn_id FROM turns WHERE state = 'judging' ORDER BY seq LIMIT ?", -1 if limit is None else limit
    )
    requests = (judge_request(db, row["turn_id"]) for row in rows)
    return [request for request in requests if request is not None]


def judged(db: Database, judgement: Judgement, drop: DropReason | None) -> bool:
    turn_id = judgement.turn_id
    if state_of(db, turn_id) is not TurnState.JUDGING:
        return False
    _store(db, judgement)
    count_up(db, "judged" if judgement.verdict is not None else "abstained")
    if math.isfinite(judgement.seconds):
        count_up(db, "judge_seconds", judgement.seconds)
    if judgement.verdict is None:
        move(db, turn_id, dropped(DropReason.JUDGE_ABSTAINED))
        return True
    move(db, turn_id, JUDGED, f"verdict {int(judgement.verdict)}")
    if drop is not None:
        move(db, turn_id, dropped(drop))
    elif paused(db) is None:
        move(db, turn_id, QUEUED)
    return True


def load(db: Database, turn_id: TurnId) -> Judgement | None:
    row = db.one("SELECT j.*, t.owner FROM judgements j JOIN turns t USING (turn_id) WHERE j.turn_id = ?", turn_id)
    if row is None:
        return None
    opinion = db.codec.unpack_json(row["owner"], row["opinion"])
    return Judgement(
        turn_id=turn_id,
        verdict=None if row["verdict"] is None else Verdict(row["verdict"]),
        score=opinion["score"],
        votes=tuple(json.loads(row["votes"])),
        judge=row["judge"],
        seconds=opinion["seconds"],
        hints=tuple(opinion["hints"]),
        detail=opinion["detail"],
    )


def pause(db: Database, by: str, reason: str) -> Pause:
    """Stops the queue from growing. The first pause stands until it is lifted; a second one changes nothing."""
    db.execute("INSERT OR IGNORE INTO pause (only, by, reason, at) VALUES (1, ?, ?, ?)", by, reason, db.clock())
    now_paused = paused(db)
    assert now_paused is not None
    return now_paused


def paused(db: Database) -> Pause | None:
    row = db.one("SELECT by, reason, at FROM pause WHERE only = 1")
    return None if row is None else Pause(by=row["by"], reason=row["reason"], at=row["at"])


def resume(db: Database) -> int:
    """Lifts the pause; returns how many turns it let into the queue."""
    db.execute("DELETE FROM pause")
    waiting = db.rows("SELECT turn_id FROM turns WHERE state = 'judged' ORDER BY seq")
    for row in waiting:
        move(db, row["turn_id"], QUEUED, "resumed")
    return len(waiting)


def _store(db: Database, judgement: Judgement) -> None:
    owner = db.scalar("SELECT owner FROM turns WHERE turn_id = ?", judgement.turn_id)
    # A judge's words can quote the conversation: they take the private path.
    opinion = {"score": judgement.score, "hints": list(judgement.hints), "detail": judgement.detail}
    opinion["seconds"] = judgement.seconds
    db.execute(
        "INSERT INTO judgements (turn_id, verdict, votes, judge, opinion) VALUES (?,?,?,?,?)",
        judgement.turn_id,
        judgement.verdict,
        json.dumps(list(judgement.votes)),
        judgement.judge,
        db.codec.pack_json(owner, opinion),
    )
