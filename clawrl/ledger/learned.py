"""Which steps learned from whom: kept on when a turn's row goes, by the pseudonym of its owner, up to a bound.

So who is forgotten later is told of the steps of turns that were pruned, or whose text had expired, long ago.
"""

from __future__ import annotations

from clawrl.ledger.codec import NOBODY
from clawrl.ledger.database import Database
from clawrl.messages import TurnId


def steps_of(db: Database, turn_id: TurnId) -> set[int]:
    """Every step that was taken with it, also those that an older checkpoint undid: their versions may still exist."""
    rows = db.rows("SELECT detail FROM transitions WHERE turn_id = ? AND to_state = 'applied'", turn_id)
    return {int(row["detail"].split()[1]) for row in rows if row["detail"].startswith("step ")}


def note(db: Database, turn_id: TurnId, owner: str) -> None:
    """Called once in a turn's life, before what says whose it was is gone."""
    if owner == NOBODY:
        return
    who = db.codec.pseudonym("owner", owner)
    for step in steps_of(db, turn_id):
        db.execute(
            "INSERT INTO trained_on (who, step, n) VALUES (?, ?, 1) ON CONFLICT (who, step) DO UPDATE SET n = n + 1",
            who,
            step,
        )


def take_out(db: Database, owner: str) -> frozenset[int]:
    """The steps that are known of an owner; nobody knows them any more."""
    who = db.codec.pseudonym("owner", owner)
    steps = db.rows("SELECT step FROM trained_on WHERE who = ?", who)
    db.execute("DELETE FROM trained_on WHERE who = ?", who)
    return frozenset(row["step"] for row in steps)


def prune(db: Database, keep: int) -> None:
    """Only the newest ``keep`` steps stay known."""
    db.execute("DELETE FROM trained_on WHERE step <= (SELECT max(step) FROM trained_on) - ?", keep)
