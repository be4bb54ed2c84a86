"""Verdicts, and whether they may move on to the queue.

The first judgement of a turn counts; one that comes when the turn has moved on is ignored, and so is one
of a case that a person has added to since: the turn goes on waiting for a judgement of all that was said. So it does
if its teacher was told a hint that was forgotten meanwhile.
An abstention never becomes a reward: without a teacher's targets, which teach without one, it drops the
turn. While submission is paused, judged turns wait as ``judged`` and ``resume`` promotes them, oldest first.

The figures about the judge cover the judgements that stand: a withdrawn one is taken out of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from clawrl.ledger import hint_uses, hints
from clawrl.ledger.cases import judge_request, taken_feedback
from clawrl.ledger.codec import KeyGone
from clawrl.ledger.counts import count_up
from clawrl.ledger.database import Database
from clawrl.ledger.moves import move, state_of
from clawrl.ledger.states import JUDGED, JUDGING, QUEUED, dropped
from clawrl.ledger.unreadable import put_away
from clawrl.ledger.views import Pause
from clawrl.messages import DropReason, Judgement, JudgeRequest, TeacherTargets, TurnId, TurnState, Verdict

GUARD = "guard"
"""Who pauses when learning goes wrong; everybody else who pauses is an operator."""


def awaiting_judgement(db: Database, limit: int | None) -> list[JudgeRequest]:
    """Every case that a judge still owes an answer for, oldest first. One that cannot be read is nobody's case."""
    rows = db.rows(
        "SELECT turn_id FROM turns WHERE state = 'judging' ORDER BY seq LIMIT ?", -1 if limit is None else limit
    )
    requests = []
    for row in rows:
        try:
            requests.append(judge_request(db, row["turn_id"]))
        except KeyGone as error:
            put_away(db, row["turn_id"], error)
    return [request for request in requests if request is not None]


def judged(
    db: Database,
    judgement: Judgement,
    drop: DropReason | None,
    targets: TeacherTargets | None,
    feedback_at: float | None,
    reused: Sequence[str] | None = None,
) -> bool:
    """``reused`` are the hints of other turns in the targets, in the words in which `hints.known` told them."""
    turn_id = judgement.turn_id
    if state_of(db, turn_id) is not TurnState.JUDGING:
        return False
    on_file = taken_feedback(db, turn_id)
    if feedback_at != (None if on_file is None else on_file.given_at):
        return False
    if reused is not None and not _may_use(db, turn_id, reused):
        return False
    _store(db, judgement, targets)
    _count(db, judgement, 1)
    if judgement.reward is None and (drop is not None or targets is None):
        move(db, turn_id, dropped(drop or DropReason.JUDGE_ABSTAINED))
        return True
    move(db, turn_id, JUDGED, "taught" if judgement.reward is None else f"reward {judgement.reward:g}")
    if drop is not None:
        move(db, turn_id, dropped(drop))
    elif paused(db) is None:
        move(db, turn_id, QUEUED)
    return True


def reopen(db: Database, turn_id: TurnId, why: str) -> None:
    """Sends a turn (back) to the judge and forgets its judgement, its hints and what a teacher said of it."""
    if state_of(db, turn_id) is TurnState.JUDGING:
        return
    earlier = load(db, turn_id)
    if earlier is not None:
        _count(db, earlier, -1)
        hints.forget(db, turn_id)
        for table in ("judgements", "targets", "hint_uses"):
            db.execute(f"DELETE FROM {table} WHERE turn_id = ?", turn_id)
    move(db, turn_id, JUDGING, why)


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
        feedback=row["feedback"],
    )


def load_targets(db: Database, turn_id: TurnId) -> TeacherTargets | None:
    row = db.one("SELECT g.teaching, t.owner FROM targets g JOIN turns t USING (turn_id) WHERE turn_id = ?", turn_id)
    return None if row is None else db.codec.unpack_targets(row["owner"], row["teaching"])


def pause(db: Database, by: str, reason: str) -> Pause:
    """Stops the queue from growing. The first pause stands until it is lifted; a second one changes nothing.

    The guard's takes the place of an operator's, so that nobody lifts it for having done with the other.
    """
    standing = paused(db)
    if standing is not None and by == GUARD and standing.by != GUARD:
        reason += f" (already paused by {standing.by}: {standing.reason})"
    elif standing is not None:
        return standing
    made = Pause(by=by, reason=reason, at=db.clock())
    db.execute("INSERT OR REPLACE INTO pause (only, by, reason, at) VALUES (1, ?, ?, ?)", made.by, made.reason, made.at)
    return made


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


def _may_use(db: Database, turn_id: TurnId, reused: Sequence[str]) -> bool:
    owner = db.scalar("SELECT owner FROM turns WHERE turn_id = ?", turn_id)
    return hint_uses.note(db, turn_id, owner, reused)


def _count(db: Database, judgement: Judgement, by: int) -> None:
    count_up(db, "abstained" if judgement.reward is None else "judged", by)
    if math.isfinite(judgement.seconds):
        count_up(db, "judge_seconds", by * judgement.seconds)


def _store(db: Database, judgement: Judgement, targets: TeacherTargets | None) -> None:
    turn = db.one("SELECT owner, session FROM turns WHERE turn_id = ?", judgement.turn_id)
    assert turn is not None
    owner = turn["owner"]
    # A judge's words can quote the conversation: they take the private path.
    opinion = {"score": judgement.score, "hints": list(judgement.hints), "detail": judgement.detail}
    opinion["seconds"] = judgement.seconds
    db.execute(
        "INSERT INTO judgements (turn_id, verdict, votes, judge, feedback, reward, opinion) VALUES (?,?,?,?,?,?,?)",
        judgement.turn_id,
        judgement.verdict,
        json.dumps(list(judgement.votes)),
        judgement.judge,
        judgement.feedback,
        judgement.reward,
        db.codec.pack_json(owner, opinion),
    )
    if targets is not None:
        packed = db.codec.pack_targets(owner, targets)
        db.execute("INSERT INTO targets (turn_id, teaching) VALUES (?, ?)", judgement.turn_id, packed)
    if judgement.hints:
        hints.remember(db, judgement.turn_id, owner, turn["session"], judgement.hints)
