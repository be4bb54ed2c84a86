"""What is left of a turn when nothing that it said is kept: that there was one, when, and how long it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.messages import NO_INPUTS, NOTHING_SAID, Arrival, SamplingParams, Turn, TurnId, Withheld


def blank_arrival(arrival: Arrival) -> Arrival:
    """Without a word. The hashes stay, so that its session holds together: they are keyed."""
    return replace(arrival, history=(), new_messages=(), sent=None, inputs=NO_INPUTS)


def blank_turn(turn: Turn) -> Turn:
    """Without a word or an id."""
    return replace(
        turn,
        arrival=blank_arrival(turn.arrival),
        response_text="",
        answer=NOTHING_SAID,
        prompt_ids=np.empty(0, np.int32),
        response_ids=np.empty(0, np.int32),
        response_logps=np.empty(0, np.float32),
        spans=(),
        sampling=replace(turn.sampling, stop=(), json_schema=""),
        reused_ids=0,
        withheld=Withheld.ALL,
    )


def nobodys_turn(turn: Turn) -> Turn:
    """Also without whose it was, and what it belonged to."""
    blank = blank_turn(turn)
    arrival = replace(
        blank.arrival,
        owner=NOBODY,
        session=None,
        prefix_hash=None,
        messages_hash="",
        answer_hash=None,
        segment="",
        group=None,
        ends_session=False,
        train_wish=None,
    )
    return replace(
        blank, arrival=arrival, reply_hash="", answer_hash="", sampling=SamplingParams(), session="", parent=None
    )


def strip(db: Database, turn_id: TurnId, *, keep_judgement: bool) -> None:
    """The turn's row stays, with its state; all that it said, whose it was and what it belonged to goes."""
    db.execute(
        "UPDATE arrivals SET owner = ?, session = '', parent = NULL, prefix_hash = NULL, messages_hash = '',"
        " answer_hash = NULL, segment = '', group_id = NULL, history = ?, new_messages = ?, sent = NULL, inputs = ?,"
        " new_count = 0, ends_session = 0 WHERE turn_id = ?",
        NOBODY,
        db.codec.pack_messages(NOBODY, ()),
        db.codec.pack_messages(NOBODY, ()),
        db.codec.pack_json(NOBODY, [[], "{}"]),
        turn_id,
    )
    db.execute(
        "UPDATE turns SET owner = ?, session = '', implicit = 0, group_id = NULL, messages_hash = '', reply_hash = '',"
        " answer_hash = '', withheld = 'all', forgotten = 1 WHERE turn_id = ?",
        NOBODY,
        turn_id,
    )
    _strip_payload(db, turn_id)
    for table in ("evidence", "targets", "hint_uses", "feedback", "hints", "refusals"):
        db.execute(f"DELETE FROM {table} WHERE turn_id = ?", turn_id)
    silence_judge(db, turn_id, NOBODY, keep=keep_judgement)


def _strip_payload(db: Database, turn_id: TurnId) -> None:
    db.execute(
        "UPDATE payloads SET response_text = ?, answer = ?, prompt_ids = x'', response_ids = x'', response_logps = x'',"
        " spans = '[]', sampling = ? WHERE turn_id = ?",
        db.codec.pack_json(NOBODY, ""),
        db.codec.pack_json(NOBODY, [["assistant", ""]]),
        json.dumps({"temperature": 1.0, "stop": []}).encode(),
        turn_id,
    )


def silence_judge(db: Database, turn_id: TurnId, owner: str, *, keep: bool) -> None:
    """What the judge decided is no one's words; what it wrote may quote them."""
    if not keep:
        db.execute("DELETE FROM judgements WHERE turn_id = ?", turn_id)
        return
    said: dict[str, Any] = {"score": None, "hints": [], "detail": "", "seconds": 0.0}
    db.execute("UPDATE judgements SET opinion = ? WHERE turn_id = ?", db.codec.pack_json(owner, said), turn_id)
