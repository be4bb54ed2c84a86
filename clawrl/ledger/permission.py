"""Who does not want to be learned from: the wish of a request holds for its session until another one says otherwise.

Nothing of such a request is learned from: not its answer, nor its words as evidence for the answer before.

A wish outlives what it protects. That of a session with a name is kept as long as there is a turn of it, and `KEEP_S`
since the last request in it; of those whose turns are gone, only while they are among the ``MOST`` youngest of all. Who
is forgotten is not forgotten to have said no: the wishes stay under pseudonyms. A session without a name cannot be
continued once its turns are gone.
"""

from __future__ import annotations

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.messages import Arrival

KEEP_S = 90 * 86_400.0
MOST = 200_000


def may_train(db: Database, arrival: Arrival, session: str) -> bool:
    """Notes the wish, if the request has one."""
    if arrival.train_wish is not None:
        if arrival.train_wish:
            for owner, name in _names(db, arrival.owner, session):
                db.execute("DELETE FROM opted_out WHERE owner = ? AND session = ?", owner, name)
        else:
            _note(db, arrival.owner, session)
            return False
    if not arrival.may_train or db.scalar("SELECT 1 FROM opted_out LIMIT 1") is None:
        return arrival.may_train
    said_no = False
    for owner, name in _names(db, arrival.owner, session):
        # A session that goes on keeps its wish.
        renewed = "UPDATE opted_out SET at = ? WHERE owner = ? AND session = ?"
        said_no |= db.execute(renewed, db.clock(), owner, name) > 0
    return not said_no


def note_late(db: Database, arrival: Arrival) -> None:
    """The request itself is of the past and forgotten, what it wished holds."""
    if arrival.session is not None and arrival.train_wish is False:
        _note(db, *_pseudonym(db, arrival.owner, arrival.session))


def keep_wishes(db: Database, owner: str, session: str | None) -> None:
    """Of somebody, or of a session, that is forgotten: without saying whose they were."""
    narrowed, values = ("", (owner,)) if session is None else (" AND session = ?", (owner, session))
    for row in db.rows(f"SELECT session, at FROM opted_out WHERE owner = ?{narrowed}", *values):
        nobody, name = _pseudonym(db, owner, row["session"])
        db.execute("INSERT OR REPLACE INTO opted_out (owner, session, at) VALUES (?, ?, ?)", nobody, name, row["at"])
    db.execute(f"DELETE FROM opted_out WHERE owner = ?{narrowed}", *values)


def session_is_gone(db: Database, owner: str, session: str) -> None:
    """A turn or a request of a session without a name was deleted; the last one takes the wish along."""
    db.execute(
        "DELETE FROM opted_out WHERE owner = ? AND session = ?"
        " AND NOT EXISTS (SELECT 1 FROM arrivals WHERE owner = ? AND session = ?)",
        *(owner, session) * 2,
    )


def prune(db: Database, limit: int) -> None:
    """Wishes that protect nothing any more, at most so many."""
    idle = "NOT EXISTS (SELECT 1 FROM arrivals a WHERE a.owner = o.owner AND a.session = o.session)"
    too_many = db.scalar("SELECT at FROM opted_out ORDER BY at DESC LIMIT 1 OFFSET ?", MOST)
    since = db.clock() - KEEP_S
    db.execute(
        "DELETE FROM opted_out WHERE (owner, session) IN"
        f" (SELECT owner, session FROM opted_out o WHERE at <= ? AND {idle} ORDER BY at LIMIT ?)",
        since if too_many is None else max(since, too_many),
        limit,
    )


def _note(db: Database, owner: str, session: str) -> None:
    db.execute("INSERT OR REPLACE INTO opted_out (owner, session, at) VALUES (?, ?, ?)", owner, session, db.clock())


def _names(db: Database, owner: str, session: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Under which a wish may be known."""
    return (owner, session), _pseudonym(db, owner, session)


def _pseudonym(db: Database, owner: str, session: str) -> tuple[str, str]:
    return NOBODY, db.codec.pseudonym("session", owner, session)
