"""What judges have said would make answers better: remembered per owner, most recently confirmed first.

A hint is a text in a session, confirmed by every turn whose judgement gives it. It outlives these turns,
but not the withdrawal of all their judgements. Each owner keeps the ``KEEP_HINTS`` most recently confirmed
hints, and each hint its ``KEEP_CONFIRMATIONS`` newest confirmations. The digest is over the text, which
itself takes the private path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from clawrl.ledger.database import Database
from clawrl.messages import TurnId

KEEP_HINTS = 256
KEEP_CONFIRMATIONS = 8


def remember(db: Database, turn_id: TurnId, owner: str, session: str, hints: Sequence[str]) -> None:
    """The judgement of this turn gives these hints."""
    now = db.clock()
    for hint in hints:
        digest = hashlib.sha256(hint.encode("utf-8", "surrogatepass")).hexdigest()
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
    """Distinct texts, of one session or of all of the owner's; those confirmed together keep their order."""
    narrowed = "" if session is None else " AND session = ?"
    values = (owner,) if session is None else (owner, session)
    rows = db.rows(
        # SQLite takes the bare columns from the row that holds the maximum.
        f"SELECT hint, id, max(at) AS latest FROM hints WHERE owner = ?{narrowed}"
        " GROUP BY digest ORDER BY latest DESC, id LIMIT ?",
        *values,
        limit,
    )
    return tuple(db.codec.unpack_json(owner, row["hint"]) for row in rows)
