"""That somebody was forgotten: remembered until nothing of theirs can come any more, without saying who it was.

A request that came before its user, or its session, was forgotten may still be answered, or lie in a journal. It leaves
nothing but its count. While the forgetting is under way its names are there, so that a restart goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.messages import Arrival

KEEP_S = 30 * 86_400.0
"""Longer than any journal waits to be handed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose requests are forgotten: all of the owner's, or those of a session; which came in ``since`` to ``until``."""

    owner: str
    session: str | None
    since: float
    until: float


def remember(db: Database, scope: Scope) -> None:
    db.execute(
        "INSERT INTO forgotten (who, since, until, owner, session) VALUES (?, ?, ?, ?, ?) ON CONFLICT (who) DO UPDATE"
        " SET since = min(since, excluded.since), until = max(until, excluded.until),"
        " owner = excluded.owner, session = excluded.session",
        _who(db, scope.owner, scope.session),
        scope.since,
        scope.until,
        scope.owner,
        scope.session,
    )


def under_way(db: Database) -> list[Scope]:
    """What was begun and not ended."""
    return [
        Scope(owner=row["owner"], session=row["session"], since=row["since"], until=row["until"])
        for row in db.rows("SELECT * FROM forgotten WHERE owner IS NOT NULL ORDER BY until")
    ]


def ended(db: Database, scope: Scope) -> None:
    """All of it is gone; the names go, too."""
    db.execute("UPDATE forgotten SET owner = NULL, session = NULL WHERE who = ?", _who(db, scope.owner, scope.session))
    db.execute("DELETE FROM forgotten WHERE owner IS NULL AND until < ?", db.clock() - KEEP_S)


def is_forgotten(db: Database, arrival: Arrival) -> bool:
    """Whether this request is of somebody who was forgotten since, or of a session that was."""
    if db.scalar("SELECT 1 FROM forgotten LIMIT 1") is None:
        return False
    who = [_who(db, arrival.owner, None)]
    if arrival.session is not None:
        who.append(_who(db, arrival.owner, arrival.session))
    marks = ", ".join("?" for _ in who)
    gone = db.scalar(
        f"SELECT 1 FROM forgotten WHERE who IN ({marks}) AND ? BETWEEN since AND until", *who, arrival.arrived_at
    )
    # One without a name of its session is known by what was left of its announcement.
    return gone is not None or db.scalar("SELECT owner FROM arrivals WHERE turn_id = ?", arrival.turn_id) == NOBODY


def _who(db: Database, owner: str, session: str | None) -> str:
    return db.codec.pseudonym("owner", owner) if session is None else db.codec.pseudonym("session", owner, session)
