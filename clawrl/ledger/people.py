"""Who is in the ledger, and what the sessions that clients call by one name are called here.

A name in which a rule finds something is stored under another one, which differs from owner to owner.
"""

from __future__ import annotations

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.ledger.screening import Gate

_OWNERS = (
    "WITH RECURSIVE each(owner) AS (SELECT min(owner) FROM {table} UNION ALL"
    " SELECT (SELECT min(owner) FROM {table} WHERE owner > each.owner) FROM each WHERE each.owner IS NOT NULL)"
    " SELECT owner FROM each WHERE owner IS NOT NULL AND owner != ?"
)
"""From one to the next by an index on the owner, however many rows each has."""


def owners(db: Database, table: str = "arrivals") -> list[str]:
    """Everybody of whom there is something, in order."""
    return [row["owner"] for row in db.rows(_OWNERS.format(table=table), NOBODY)]


def sessions_called(db: Database, gate: Gate, session: str, table: str = "arrivals") -> list[tuple[str, str]]:
    """Everybody who has a session that is, or was, called like this, with the name that it has here."""
    return [each for owner in owners(db, table) for each in sessions_of(db, gate, owner, session, table)]


def sessions_of(db: Database, gate: Gate, owner: str, session: str, table: str = "arrivals") -> list[tuple[str, str]]:
    """Those of one owner."""
    return [
        (owner, name)
        for name in sorted(gate.names(owner, session))
        if db.scalar(f"SELECT 1 FROM {table} WHERE owner = ? AND session = ? LIMIT 1", owner, name)
    ]


def names_of(db: Database, gate: Gate, session: str, owner: str | None) -> list[str]:
    """What a session of turns that is called like this is called here, of one owner or of all."""
    if gate.screen.is_clean(session):
        return [session]
    if owner is not None:
        return [gate.name(owner, session)]
    return sorted({name for _, name in sessions_called(db, gate, session, "turns")}) or [session]
