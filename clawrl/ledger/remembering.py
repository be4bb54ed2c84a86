"""That somebody was forgotten: remembered until nothing of theirs can come any more, without saying who it was.

A request that came before its user, or its session, was forgotten may still be answered, or lie in a journal. It leaves
nothing but its count. One row is one interval of one session or user: what came between two of them stays.

While the forgetting is under way its names are there, so that a restart goes on with it. What was found is written down
with every batch, and a report that nobody was told yet is told to who asks for the same again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.ledger.forgotten import Forgotten
from clawrl.messages import Arrival

KEEP_S = 30 * 86_400.0
"""Longer than any journal waits to be handed in."""
MOST_LEAD_S = 3_600.0
"""A clock that is further ahead is not believed."""
_ON_THE_WAY_S = 10.0
"""How much more a clock may be ahead than it seems: a request takes its time until it is noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose requests are forgotten: all of the owner's, or those of a session, which came in ``since`` then.

    ``until`` is when it was begun, by the ledger's clock, and at last when all of it was gone.
    """

    id: int
    owner: str
    session: str | None
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """``wanted`` stands for what is to be forgotten, ``asked`` for one call for it, however often that is made."""

    wanted: str
    asked: str


def remember(db: Database, owner: str, session: str | None, since: float, call: Call) -> int:
    """From now on nothing of this is recorded. Returns the id of what was begun."""
    db.execute(
        "INSERT INTO forgettings (who, since, until, lead, owner, session, wanted, asked, found, told)"
        " VALUES (?, ?, ?, 0.0, ?, ?, ?, ?, ?, 0)",
        _who(db, owner, session),
        since,
        db.clock(),
        owner,
        session,
        call.wanted,
        call.asked,
        Forgotten().pack(),
    )
    return int(db.scalar("SELECT last_insert_rowid()"))


def under_way(db: Database, among: Collection[int] | None = None) -> list[Scope]:
    """What was begun and not ended."""
    rows = db.rows("SELECT * FROM forgettings WHERE owner IS NOT NULL ORDER BY id")
    return [_scope(row) for row in rows if among is None or row["id"] in among]


def of_call(db: Database, call: Call) -> list[int]:
    """What this very call began before its answer was lost."""
    if not call.asked:
        return []
    return [row["id"] for row in db.rows("SELECT id FROM forgettings WHERE asked = ?", call.asked)]


def untold(db: Database, call: Call) -> list[int]:
    """What earlier calls for the same began, of which nobody was told."""
    return [row["id"] for row in db.rows("SELECT id FROM forgettings WHERE wanted = ? AND NOT told", call.wanted)]


def note(db: Database, scope: Scope, found: Forgotten, lead: float = 0.0) -> None:
    """Adds to what was found; ``lead`` is how far a clock that stamped these requests is ahead of this one."""
    before = db.scalar("SELECT found FROM forgettings WHERE id = ?", scope.id)
    db.execute(
        "UPDATE forgettings SET found = ?, lead = max(lead, ?) WHERE id = ?",
        (Forgotten.unpack(before) + found).pack(),
        min(lead + _ON_THE_WAY_S, MOST_LEAD_S) if lead > 0.0 else 0.0,
        scope.id,
    )


def found(db: Database, ids: Iterable[int]) -> Forgotten:
    result = Forgotten()
    for each in ids:
        if (row := db.one("SELECT found FROM forgettings WHERE id = ?", each)) is not None:
            result += Forgotten.unpack(row["found"])
    return result


def tell(db: Database, ids: Iterable[int]) -> None:
    for each in ids:
        db.execute("UPDATE forgettings SET told = 1 WHERE id = ?", each)


def told_of(db: Database, wanted: str) -> None:
    db.execute("UPDATE forgettings SET told = 1 WHERE wanted = ? AND owner IS NULL", wanted)


def extend(db: Database, scope: Scope) -> None:
    """Until now, and all that came until now is gone."""
    db.execute("UPDATE forgettings SET until = max(until, ?) WHERE id = ?", db.clock(), scope.id)


def ended(db: Database, scope: Scope) -> None:
    """All of it is gone; the names go, too."""
    db.execute("UPDATE forgettings SET owner = NULL, session = NULL WHERE id = ?", scope.id)


def prune(db: Database) -> None:
    """Nothing of theirs can come any more."""
    db.execute("DELETE FROM forgettings WHERE owner IS NULL AND until < ?", db.clock() - KEEP_S)


def is_forgotten(db: Database, arrival: Arrival) -> bool:
    """Whether this request is of somebody who was forgotten since, or of a session that was.

    Of one that was announced the ledger knows what became of it. Of one that was not (the coordinator was away) there
    is only the time that the ingress stamped on it, whose clock may be ahead.
    """
    if db.scalar("SELECT 1 FROM forgettings LIMIT 1") is None:
        return False
    announced = db.scalar("SELECT owner FROM arrivals WHERE turn_id = ?", arrival.turn_id)
    if announced == NOBODY:
        return True
    return _covered(db, arrival, "0.0" if announced is not None else "lead")


def is_refused(db: Database, arrival: Arrival) -> bool:
    """Whether a request that is announced now came before its user, or its session, was forgotten."""
    return _covered(db, arrival, "0.0")


def _covered(db: Database, arrival: Arrival, lead: str) -> bool:
    who = [_who(db, arrival.owner, None)]
    if arrival.session is not None:
        who.append(_who(db, arrival.owner, arrival.session))
    marks = ", ".join("?" for _ in who)
    gone = db.scalar(
        # The second bound is for the index.
        f"SELECT 1 FROM forgettings WHERE who IN ({marks}) AND until >= ?"
        f" AND ? BETWEEN since AND until + {lead} LIMIT 1",
        *who,
        arrival.arrived_at - MOST_LEAD_S,
        arrival.arrived_at,
    )
    return gone is not None


def _scope(row: sqlite3.Row) -> Scope:
    return Scope(id=row["id"], owner=row["owner"], session=row["session"], since=row["since"], until=row["until"])


def _who(db: Database, owner: str, session: str | None) -> str:
    return db.codec.pseudonym("owner", owner) if session is None else db.codec.pseudonym("session", owner, session)
