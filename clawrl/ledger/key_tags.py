"""Which of an owner's keys their rows were written under, also where nothing is sealed.

A tag is the keyed digest of a constant: another key of the same owner has another one, and without the key it says
nothing. Written with each arrival, so that no row is of a newer key than its owner's tag. Ledgers that were written
before there were tags have none until their owner's next request.
"""

from __future__ import annotations

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database

_CONSTANT = "the key of these rows"


def note(db: Database, owner: str) -> None:
    """In the transaction that writes a row of theirs."""
    if db.codec.keyed is not None and owner != NOBODY:
        db.execute(
            "INSERT INTO key_tags (owner, tag) VALUES (?, ?)"
            " ON CONFLICT (owner) DO UPDATE SET tag = excluded.tag WHERE tag != excluded.tag",
            owner,
            db.codec.digest(owner, _CONSTANT),
        )


def is_of_an_earlier_key(db: Database, owner: str) -> bool:
    """Whether their rows are from before the key that they have now; false where no tag tells."""
    tag = db.scalar("SELECT tag FROM key_tags WHERE owner = ?", owner)
    return tag is not None and tag != db.codec.digest(owner, _CONSTANT)


def forget(db: Database, owner: str) -> None:
    db.execute("DELETE FROM key_tags WHERE owner = ?", owner)
