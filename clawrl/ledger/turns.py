"""Served turns: how one is written, how one is read back bit for bit.

A turn is inserted once; a second record of the same id changes nothing. Its request is linked first if
the ingress had not announced it, so evidence for the parent is never lost to the order of two calls.

Permission outranks every other reason against a turn, then that something in it was redacted. One that was forgotten
while it was being served leaves nothing but its count.
"""

from __future__ import annotations

import sqlite3

from clawrl.ledger import refusals
from clawrl.ledger.blanks import blank_turn, nobodys_turn
from clawrl.ledger.codec import NOBODY, pack_spans, unpack_spans
from clawrl.ledger.counts import count_up
from clawrl.ledger.database import Database
from clawrl.ledger.forgotten import ASKED
from clawrl.ledger.linking import adopt_orphan, arrive
from clawrl.ledger.moves import log, move
from clawrl.ledger.permission import note_late
from clawrl.ledger.remembering import is_forgotten
from clawrl.ledger.states import AWAITING_NEXT, SERVED, check_move, dropped
from clawrl.ledger.views import Recorded
from clawrl.messages import Arrival, DropReason, FinishReason, JudgeRequest, Turn, TurnId, TurnKind, Withheld

_TURN = (
    "SELECT t.*, a.parent, a.prefix_hash, a.answer_hash AS last_answer, a.segment, a.history, a.new_messages, a.sent,"
    " a.inputs, a.ends_session, a.may_train, a.arrived_at, p.response_text, p.answer, p.prompt_ids, p.response_ids,"
    " p.response_logps, p.spans, p.sampling"
    " FROM turns t JOIN arrivals a USING (turn_id) JOIN payloads p USING (turn_id)"
)


def record(
    db: Database,
    turn: Turn,
    drop: DropReason | None,
    detail: str = "",
    words: str = "",
    measured: Turn | None = None,
) -> Recorded:
    """``measured`` is the turn as it was sampled, where that is not what is stored. ``words`` are its filter's."""
    if turn.turn_id != turn.arrival.turn_id:
        raise ValueError(f"turn {turn.turn_id} carries the arrival of {turn.arrival.turn_id}")
    if turn.arrival.owner == NOBODY or is_forgotten(db, turn.arrival):
        if turn.arrival.owner != NOBODY:
            note_late(db, turn.arrival)
        turn, drop, detail, measured = nobodys_turn(turn), DropReason.FORGOTTEN, ASKED, None
    linked = arrive(db, turn.arrival)
    to_judge: list[JudgeRequest] = [] if linked.to_judge is None else [linked.to_judge]
    if db.scalar("SELECT 1 FROM turns WHERE turn_id = ?", turn.turn_id):
        return Recorded(new=False, session=linked.session, parent=linked.parent, to_judge=tuple(to_judge))
    # What was announced decides, not the copy that came along: the first of two equal ids counts.
    announced = db.one("SELECT * FROM arrivals WHERE turn_id = ?", turn.turn_id)
    assert announced is not None
    if drop is not DropReason.FORGOTTEN:
        if not announced["may_train"]:
            drop, detail = DropReason.NOT_PERMITTED, ""
            if not db.keeps_untrainable:
                turn, measured = blank_turn(turn), measured or turn
        elif turn.withheld is not Withheld.NOTHING:
            drop, detail = DropReason.REDACTED, ""
    _insert(db, turn, announced, measured or turn)
    count_up(db, "recorded")
    if drop is not None:
        move(db, turn.turn_id, dropped(drop), detail)
        if words and drop is DropReason.REFUSED_BY_FILTER:
            refusals.note(db, turn.turn_id, announced["owner"], words)
    else:
        move(db, turn.turn_id, AWAITING_NEXT)
        orphan = adopt_orphan(db, turn.turn_id)
        if orphan is not None:
            to_judge.append(orphan)
    if announced["ends_session"]:
        end_session(db, announced["owner"], announced["session"])
    return Recorded(new=True, session=linked.session, parent=linked.parent, to_judge=tuple(to_judge))


def load(db: Database, turn_id: TurnId) -> Turn | None:
    row = db.one(f"{_TURN} WHERE t.turn_id = ?", turn_id)
    return None if row is None else _turn(db, row)


def leased(db: Database, lease_id: str) -> list[TurnId]:
    rows = db.rows(
        "SELECT turn_id FROM turns WHERE state = 'leased' AND lease_id = ? AND NOT forgotten ORDER BY seq", lease_id
    )
    return [row["turn_id"] for row in rows]


def latest(db: Database, owner: str, session: str) -> TurnId | None:
    found: TurnId | None = db.scalar(
        "SELECT turn_id FROM turns WHERE owner = ? AND session = ? AND kind = 'main' ORDER BY seq DESC LIMIT 1",
        owner,
        session,
    )
    return found


def is_duplicate(db: Database, turn: Turn, window_s: float) -> bool:
    """Whether another main turn of this owner, recorded before, said the same to the same within the window.

    The reply hash is over the messages and the answer, so that no private text is read. Answers of a group are asked
    for more than once on purpose and are never duplicates.
    """
    if turn.arrival.group is not None:
        return False
    own = db.scalar("SELECT seq FROM turns WHERE turn_id = ?", turn.turn_id)
    found = db.scalar(
        "SELECT 1 FROM turns WHERE owner = ? AND reply_hash = ? AND kind = 'main' AND recorded_at >= ?"
        " AND (? IS NULL OR seq < ?) LIMIT 1",
        turn.arrival.owner,
        turn.reply_hash,
        db.clock() - window_s,
        own,
        own,
    )
    return found is not None


def end_session(db: Database, owner: str, session: str) -> int:
    """Returns how many turns were still waiting for evidence."""
    awaiting = db.rows(
        "SELECT turn_id FROM turns WHERE owner = ? AND session = ? AND state = 'awaiting_next'", owner, session
    )
    for row in awaiting:
        move(db, row["turn_id"], dropped(DropReason.SESSION_ENDED))
    return len(awaiting)


def _insert(db: Database, turn: Turn, announced: sqlite3.Row, measured: Turn) -> None:
    check_move(turn.turn_id, None, SERVED.state)
    now = db.clock()
    owner = announced["owner"]
    versions = [span.version for span in measured.spans]
    db.execute(
        "INSERT INTO turns (turn_id, owner, session, implicit, kind, group_id, messages_hash, reply_hash,"
        " answer_hash, state, oldest_version, newest_version, prompt_tokens, reused_tokens, response_tokens,"
        " finish_reason, started_at, finished_at, replica, overridden, recorded_at, state_at, withheld)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        turn.turn_id,
        owner,
        announced["session"],
        announced["implicit"],
        announced["kind"],
        announced["group_id"],
        announced["messages_hash"],
        turn.reply_hash,
        turn.answer_hash,
        SERVED.state,
        min(versions, default=None),
        max(versions, default=None),
        len(measured.prompt_ids),
        measured.reused_ids,
        len(measured.response_ids),
        turn.finish_reason,
        turn.started_at,
        turn.finished_at,
        turn.replica,
        turn.overridden,
        now,
        now,
        turn.withheld,
    )
    db.execute(
        "INSERT INTO payloads (turn_id, response_text, answer, prompt_ids, response_ids, response_logps, spans,"
        " sampling)"
        " VALUES (?,?,?,?,?,?,?,?)",
        turn.turn_id,
        db.codec.pack_json(owner, turn.response_text),
        db.codec.pack_messages(owner, [turn.answer]),
        db.codec.pack_ids(owner, turn.prompt_ids),
        db.codec.pack_ids(owner, turn.response_ids),
        db.codec.pack_logps(owner, turn.response_logps),
        pack_spans(turn.spans),
        db.codec.pack_sampling(owner, turn.sampling),
    )
    db.execute("UPDATE arrivals SET recorded = 1 WHERE turn_id = ?", turn.turn_id)
    log(db, turn.turn_id, None, SERVED)


def _turn(db: Database, row: sqlite3.Row) -> Turn:
    owner = row["owner"]
    arrival = Arrival(
        turn_id=row["turn_id"],
        session=None if row["implicit"] else row["session"],
        owner=owner,
        kind=TurnKind(row["kind"]),
        prefix_hash=row["prefix_hash"],
        messages_hash=row["messages_hash"],
        new_messages=db.codec.unpack_messages(owner, row["new_messages"]),
        ends_session=bool(row["ends_session"]),
        arrived_at=row["arrived_at"],
        may_train=bool(row["may_train"]),
        history=db.codec.unpack_messages(owner, row["history"]),
        group=row["group_id"],
        inputs=db.codec.unpack_inputs(owner, row["inputs"]),
        answer_hash=row["last_answer"],
        segment=row["segment"],
        sent=None if row["sent"] is None else db.codec.unpack_messages(owner, row["sent"]),
    )
    return Turn(
        turn_id=row["turn_id"],
        arrival=arrival,
        reply_hash=row["reply_hash"],
        answer_hash=row["answer_hash"],
        response_text=db.codec.unpack_json(owner, row["response_text"]),
        answer=db.codec.unpack_messages(owner, row["answer"])[0],
        reused_ids=row["reused_tokens"] if row["withheld"] == Withheld.NOTHING else 0,
        prompt_ids=db.codec.unpack_ids(owner, row["prompt_ids"]),
        response_ids=db.codec.unpack_ids(owner, row["response_ids"]),
        response_logps=db.codec.unpack_logps(owner, row["response_logps"]),
        spans=unpack_spans(row["spans"]),
        sampling=db.codec.unpack_sampling(owner, row["sampling"]),
        finish_reason=FinishReason(row["finish_reason"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        replica=row["replica"],
        overridden=bool(row["overridden"]),
        session=row["session"],
        parent=row["parent"],
        withheld=Withheld(row["withheld"]),
    )
