"""Which turn a request continues, and what that proves about it.

A request continues the turn whose ``reply_hash`` is its ``prefix_hash``: within the named session, or
among the anonymous turns of the same owner. Of several, one with the same system messages and tools
comes first. Where a client has rewritten the history (cut or merged it) none does; in a named session
the request then continues the turn that gave the last answer in it, known by ``answer_hash``.

One awaiting turn receives evidence once, from the first ``main`` request that brings new messages;
everything after that is a branch, linked but mute. So is a second request with the same body, even if
another turn with the same words already waited when the first one came: it is a retry, not a second
opinion.

A turn that a person gave feedback on is with the judge before any request continues it. The first one
that does still is its evidence, as long as nobody is learning from the turn.

Anonymous requests that continue nothing get a session of their own each; nothing pools them.

A request that may not train brings no evidence, and where its text is not to be kept, none is stored.
"""

from __future__ import annotations

import sqlite3
import uuid

from clawrl.ledger import key_tags
from clawrl.ledger.blanks import blank_arrival
from clawrl.ledger.cases import judge_request
from clawrl.ledger.codec import NOBODY, KeyGone
from clawrl.ledger.database import Database
from clawrl.ledger.feedback import lacks_evidence
from clawrl.ledger.judgements import reopen
from clawrl.ledger.permission import may_train, note_late
from clawrl.ledger.remembering import is_refused
from clawrl.ledger.unreadable import put_away
from clawrl.ledger.views import Linked
from clawrl.messages import Arrival, JudgeRequest, TurnId, TurnKind


def arrive(db: Database, arrival: Arrival) -> Linked:
    known = db.one("SELECT session, parent FROM arrivals WHERE turn_id = ?", arrival.turn_id)
    if known is not None:
        return Linked(session=known["session"], parent=known["parent"], to_judge=None)
    if arrival.owner != NOBODY and is_refused(db, arrival):
        note_late(db, arrival)
        return Linked(session=arrival.session or "", parent=None, to_judge=None)
    awaiting, parent = _parents(db, arrival)
    if arrival.session is not None:
        session = arrival.session
    elif parent is not None:
        session = parent["session"]
    else:
        session = f"anonymous-{uuid.uuid4().hex}"
    allowed = may_train(db, arrival, session)
    kept = arrival if allowed or db.keeps_untrainable else blank_arrival(arrival)
    _store(db, kept, session, None if parent is None else parent["turn_id"], allowed)
    to_judge = None
    brings_evidence = allowed and arrival.kind is TurnKind.MAIN and arrival.new_messages
    if brings_evidence and parent is not None and (awaiting is not None or lacks_evidence(db, parent["turn_id"])):
        to_judge = deliver(db, parent["turn_id"], arrival.turn_id)
    return Linked(session=session, parent=None if parent is None else parent["turn_id"], to_judge=to_judge)


def deliver(db: Database, parent: TurnId, child: TurnId) -> JudgeRequest | None:
    """The child's new messages become the parent's evidence, and the parent a case for the judge, if it can be read."""
    # Copied as sealed bytes: parent and child have one owner.
    db.execute(
        "INSERT INTO evidence (turn_id, from_turn, messages)"
        " SELECT ?, turn_id, new_messages FROM arrivals WHERE turn_id = ?",
        parent,
        child,
    )
    # The case with the evidence is another one than that of the feedback alone: a judgement of that one is void.
    db.execute("UPDATE feedback SET given_at = ? WHERE turn_id = ? AND outcome = 'taken'", db.clock(), parent)
    try:
        reopen(db, parent, f"by {child}")
        return judge_request(db, parent)
    except KeyGone as error:
        # Else nobody could go on with this conversation, and a journal with the child would never be taken in.
        put_away(db, parent, error)
        return None


def adopt_orphan(db: Database, turn_id: TurnId) -> JudgeRequest | None:
    """Evidence that came before its turn did (a turn taken in late from a journal) is delivered now.

    Only with its whole history: of what was rewritten nobody can tell whether it waited for this turn.
    """
    turn = db.one("SELECT owner, session, implicit, reply_hash, started_at FROM turns WHERE turn_id = ?", turn_id)
    assert turn is not None
    orphan = db.one(
        "SELECT turn_id, messages_hash FROM arrivals WHERE owner = ? AND prefix_hash = ? AND parent IS NULL"
        " AND implicit = ? AND (implicit = 1 OR session = ?) AND arrived_at >= ?"
        " AND kind = 'main' AND new_count > 0 AND may_train = 1 AND turn_id != ? ORDER BY arrived_at LIMIT 1",
        turn["owner"],
        turn["reply_hash"],
        turn["implicit"],
        turn["session"],
        turn["started_at"],
        turn_id,
    )
    if orphan is None:
        return None
    # The orphan's retries and, in a named session, its siblings are branches of the same parent.
    db.execute(
        "UPDATE arrivals SET parent = ? WHERE owner = ? AND prefix_hash = ? AND parent IS NULL AND implicit = ?"
        " AND ((implicit = 1 AND messages_hash = ?) OR (implicit = 0 AND session = ?)) AND arrived_at >= ?",
        turn_id,
        turn["owner"],
        turn["reply_hash"],
        turn["implicit"],
        orphan["messages_hash"],
        turn["session"],
        turn["started_at"],
    )
    return deliver(db, turn_id, orphan["turn_id"])


def _parents(db: Database, arrival: Arrival) -> tuple[sqlite3.Row | None, sqlite3.Row | None]:
    """The turn that this request is evidence for, and the turn that it continues.

    The first is the second, or ``None``. Of several candidates with its whole history the oldest that
    still awaits evidence wins, of those with its last answer the newest, else the newest of all. After
    an earlier request with the same body only a turn that was recorded since can be a new conversation;
    without one this is a retry and goes where the earlier one went.
    """
    if arrival.prefix_hash is None:
        return None, None
    earlier = _earlier(db, arrival)
    since = None if earlier is None else earlier["noted_at"]
    same_session = "implicit = 1" if arrival.session is None else "session = ?"
    values = (arrival.owner,) if arrival.session is None else (arrival.owner, arrival.session)
    select = f"SELECT turn_id, session FROM turns WHERE owner = ? AND {same_session}"
    waits = "AND state = 'awaiting_next' AND recorded_at > coalesce(?, recorded_at - 1)"
    whole = f"{select} AND reply_hash = ?"
    # The hashes leave the system messages out, which change with the date: equal words under others come second.
    alike = "(SELECT segment FROM arrivals WHERE arrivals.turn_id = turns.turn_id) = ?"
    awaiting = db.one(
        f"{whole} {waits} ORDER BY {alike} DESC, seq LIMIT 1", *values, arrival.prefix_hash, since, arrival.segment
    )
    if awaiting is not None:
        return awaiting, awaiting
    if earlier is not None:
        known = db.one("SELECT turn_id, session FROM turns WHERE turn_id = ?", earlier["parent"])
        if known is not None:
            return None, known
    newest = db.one(f"{whole} ORDER BY {alike} DESC, seq DESC LIMIT 1", *values, arrival.prefix_hash, arrival.segment)
    if newest is not None or arrival.session is None or arrival.answer_hash is None:
        return None, newest
    # Named, since SQLite would rather take the one for sessions, which knows nothing of answers.
    by_answer = f"{select} AND answer_hash = ?".replace("FROM turns", "FROM turns INDEXED BY {}", 1)
    awaiting = db.one(
        f"{by_answer.format('turns_awaiting_session')} {waits} ORDER BY seq DESC LIMIT 1",
        *values,
        arrival.answer_hash,
        since,
    )
    return awaiting, awaiting or db.one(
        f"{by_answer.format('turns_by_answer')} ORDER BY seq DESC LIMIT 1", *values, arrival.answer_hash
    )


def _earlier(db: Database, arrival: Arrival) -> sqlite3.Row | None:
    """The newest linked main request with the same body."""
    return db.one(
        "SELECT parent, noted_at FROM arrivals WHERE owner = ? AND messages_hash = ? AND implicit = ?"
        " AND (implicit = 1 OR session = ?) AND parent IS NOT NULL AND kind = 'main' ORDER BY noted_at DESC LIMIT 1",
        arrival.owner,
        arrival.messages_hash,
        arrival.session is None,
        arrival.session,
    )


def _store(db: Database, arrival: Arrival, session: str, parent: TurnId | None, allowed: bool) -> None:
    key_tags.note(db, arrival.owner)
    db.execute(
        "INSERT INTO arrivals (turn_id, owner, session, implicit, parent, kind, prefix_hash, messages_hash,"
        " answer_hash, segment, group_id, history, new_messages, sent, inputs, new_count, ends_session, may_train,"
        " arrived_at, noted_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        arrival.turn_id,
        arrival.owner,
        session,
        arrival.session is None,
        parent,
        arrival.kind,
        arrival.prefix_hash,
        arrival.messages_hash,
        arrival.answer_hash,
        arrival.segment,
        arrival.group,
        db.codec.pack_messages(arrival.owner, arrival.history),
        db.codec.pack_messages(arrival.owner, arrival.new_messages),
        None if arrival.sent is None else db.codec.pack_messages(arrival.owner, arrival.sent),
        db.codec.pack_inputs(arrival.owner, arrival.inputs),
        len(arrival.new_messages),
        arrival.ends_session,
        allowed,
        arrival.arrived_at,
        db.clock(),
    )
