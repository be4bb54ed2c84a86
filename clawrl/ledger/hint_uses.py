"""Whose hints a teacher was told about a turn, so that targets go when what they were made of is to be forgotten.

A turn that is taught with hints of its own judgement keeps them as long as itself. Hints of other turns are words of
another conversation: what is noted of each is the ``SOURCES`` turns that confirmed it last, with their sessions, and
when they did. Targets stand on nothing as soon as one of their hints has no source left. More sources would only let
more targets stay.

Taking targets back moves turns: see `clawrl.ledger.unteaching`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clawrl.ledger.database import Database
from clawrl.ledger.hints import digest_of
from clawrl.messages import TurnId

SOURCES = 4


def note(db: Database, turn_id: TurnId, owner: str, hints: Sequence[str]) -> bool:
    """The targets of this turn use these hints of others; false, and nothing noted, if one is not known any more."""
    found = []
    for hint in hints:
        digest = digest_of(db, owner, hint)
        sources = db.rows(
            "SELECT turn_id, session, max(at) AS at FROM hints WHERE owner = ? AND digest = ?"
            " GROUP BY turn_id ORDER BY at DESC LIMIT ?",
            owner,
            digest,
            SOURCES,
        )
        if not sources:
            return False
        found += [(digest, row["turn_id"], row["session"], row["at"]) for row in sources]
    for digest, source, session, at in found:
        db.execute(
            "INSERT OR REPLACE INTO hint_uses (turn_id, digest, source, owner, session, at) VALUES (?, ?, ?, ?, ?, ?)",
            turn_id,
            digest,
            source,
            owner,
            session,
            at,
        )
    return True


def of_turns(db: Database, sources: Collection[TurnId]) -> list[TurnId]:
    """These turns are forgotten; returns the others whose targets stand on nothing now."""
    left = []
    for source in sources:
        left += _without(db, "source = ?", source)
    return left


def before(db: Database, at: float, limit: int) -> list[TurnId]:
    """At most ``limit`` uses of what was confirmed before then."""
    keys = "(SELECT turn_id, digest, source FROM hint_uses WHERE at < ? ORDER BY at LIMIT ?)"
    return _without(db, f"(turn_id, digest, source) IN {keys}", at, limit)


def _without(db: Database, condition: str, *values: object) -> list[TurnId]:
    gone = db.rows(f"DELETE FROM hint_uses WHERE {condition} RETURNING turn_id, digest", *values)
    standing = "SELECT 1 FROM hint_uses WHERE turn_id = ? AND digest = ?"
    pairs = dict.fromkeys((row["turn_id"], row["digest"]) for row in gone)
    return list(dict.fromkeys(turn_id for turn_id, digest in pairs if db.scalar(standing, turn_id, digest) is None))
