"""What judges have said would make answers better: remembered per owner.

A hint is a text in a session, confirmed by every turn whose judgement gives it. It outlives these turns,
but not the withdrawal of all their judgements. Each owner keeps the ``KEEP_HINTS`` most recently confirmed
hints, and each hint its ``KEEP_CONFIRMATIONS`` newest confirmations in a session. What was asked for often
comes before what was asked for once; only the ``LATELY`` newest confirmations count, so that a new wish
outlives an old one. The digest is over the text, which itself takes the private path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from clawrl.ledger.database import Database
from clawrl.messages import TurnId

KEEP_HINTS = 256
KEEP_CONFIRMATIONS = 8
LATELY = 64


def digest_of(db: Database, owner: str, hint: str) -> str:
    """By which a hint is known."""
    return db.codec.digest(owner, hashlib.sha256(hint.encode("utf-8", "surrogatepass")).hexdigest()) or ""


def remember(db: Database, turn_id: TurnId, owner: str, session: str, hints: Sequence[str]) -> None:
    """The judgement of this turn gives these hints."""
    now = db.clock()
    for hint in hints:
        digest = digest_of(db, owner, hint)
        db.execute(
            "INSERT INTO hints (owner, session, digest, turn_id, hint, at) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            owner,
            session,
            digest,
            turn_id,
            db.codec.pack_json(owner, hint),
            now,
        )
        db.execute(
            "DELETE FROM hints WHERE id IN (SELECT id FROM hints WHERE owner = ? AND session = ? AND digest = ?"
            " ORDER BY at DESC, id DESC LIMIT -1 OFFSET ?)",
            owner,
            session,
            digest,
            KEEP_CONFIRMATIONS,
        )
    db.execute(
        "DELETE FROM hints WHERE owner = ? AND (session, digest) IN (SELECT session, digest FROM hints"
        " WHERE owner = ? GROUP BY session, digest ORDER BY max(at) DESC, max(id) LIMIT -1 OFFSET ?)",
        owner,
        owner,
        KEEP_HINTS,
    )


def forget(db: Database, turn_id: TurnId) -> None:
    """The judgement of this turn is withdrawn: its hints stand only where other turns confirm them."""
    db.execute("DELETE FROM hints WHERE turn_id = ?", turn_id)


def known(db: Database, owner: str, session: str | None, limit: int) -> tuple[str, ...]:
    """Distinct texts, of one session or of all of the owner's: what was confirmed most often lately comes first.

    Equally often means most recently first; those confirmed together keep their order.
    """
    narrowed = "" if session is None else " AND session = ?"
    values = (owner,) if session is None else (owner, session)
    rows = db.rows(
        # SQLite takes the bare columns from the row that holds the maximum.
        "SELECT hint, id, count(*) AS times, max(at) AS latest FROM"
        f" (SELECT * FROM hints WHERE owner = ?{narrowed} ORDER BY at DESC, id DESC LIMIT ?)"
        " GROUP BY digest ORDER BY times DESC, latest DESC, id LIMIT ?",
        *values,
        LATELY,
        limit,
    )
    return tuple(db.codec.unpack_json(owner, row["hint"]) for row in rows)
