"""How healthy served turns look: one row a turn, in the order in which they were first noted.

A row goes with its turn, except that the newest ``KEEP_VITALS`` stay: a guard looks back over turns,
not over what pruning left. Such a row is marked ``orphaned`` when its turn goes.
"""

from __future__ import annotations

import math
import sqlite3

from clawrl.ledger.database import Database
from clawrl.messages import ModelVitals, TurnId, Vitals

KEEP_VITALS = 2_000
_OF_MODEL = ("fluency", "on_topic_lift", "kl")


def note(db: Database, vitals: Vitals) -> None:
    """Noted again, a turn's figures are replaced and keep their place."""
    model = (None, None, None) if vitals.model is None else [getattr(vitals.model, name) for name in _OF_MODEL]
    db.execute(
        "INSERT INTO vitals (turn_id, version, response_tokens, repetition, fluency, on_topic_lift, kl, at, orphaned)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, NOT EXISTS (SELECT 1 FROM turns WHERE turn_id = ?))"
        " ON CONFLICT (turn_id) DO UPDATE SET version = excluded.version, response_tokens = excluded.response_tokens,"
        " repetition = excluded.repetition, fluency = excluded.fluency, on_topic_lift = excluded.on_topic_lift,"
        " kl = excluded.kl",
        vitals.turn_id,
        vitals.version,
        vitals.response_tokens,
        vitals.repetition,
        *model,
        db.clock(),
        vitals.turn_id,
    )


def recent(db: Database, limit: int) -> list[Vitals]:
    """The newest ``limit``, oldest first."""
    return [_vitals(row) for row in reversed(db.rows("SELECT * FROM vitals ORDER BY id DESC LIMIT ?", limit))]


def orphan(db: Database, turn_id: TurnId) -> None:
    """The turn is being deleted."""
    db.execute("UPDATE vitals SET orphaned = 1 WHERE turn_id = ?", turn_id)


def prune_orphans(db: Database) -> None:
    db.execute(
        "DELETE FROM vitals WHERE orphaned = 1 AND id <= (SELECT max(id) FROM vitals) - ?",
        KEEP_VITALS,
    )


def _vitals(row: sqlite3.Row) -> Vitals:
    figures = {name: row[name] for name in _OF_MODEL}
    asked = any(value is not None for value in figures.values())
    # SQLite has no NaN: it keeps one as NULL.
    model = ModelVitals(**{name: math.nan if value is None else value for name, value in figures.items()})
    return Vitals(
        turn_id=row["turn_id"],
        version=row["version"],
        response_tokens=row["response_tokens"],
        repetition=row["repetition"],
        model=model if asked else None,
    )
