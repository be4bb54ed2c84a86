"""Trainer runs: which one is current, and which of its steps a checkpoint holds.

A run is registered by reporting the step that it restored; from then on every earlier run is fenced
off and cannot come back. Applied turns become trained when a checkpoint includes their step.
"""

from __future__ import annotations

import sqlite3

from clawrl.ledger.database import Database
from clawrl.ledger.moves import move
from clawrl.ledger.states import held
from clawrl.messages import TurnState


class FencedRun(RuntimeError):
    """A run that has been replaced, or that never said what it restored, asked for something."""


def current_run(db: Database) -> sqlite3.Row | None:
    return db.one("SELECT * FROM runs ORDER BY id DESC LIMIT 1")


def checkpointed(db: Database, run_id: str, step: int) -> bool:
    """A checkpoint that includes steps up to ``step`` is complete; false from a run that was replaced."""
    run = current_run(db)
    if run is None or run["run_id"] != run_id:
        return False
    db.execute(
        "UPDATE runs SET checkpointed_step = max(checkpointed_step, ?), taken_step = max(taken_step, ?)"
        " WHERE run_id = ?",
        step,
        step,
        run_id,
    )
    settle(db, step)
    return True


def settle(db: Database, step: int) -> int:
    """Applied turns of steps up to ``step`` are trained."""
    proven = db.rows(
        "SELECT turn_id, step, lease_id FROM turns WHERE state = 'applied' AND step <= ? ORDER BY step, seq", step
    )
    for row in proven:
        move(db, row["turn_id"], held(TurnState.TRAINED, row["step"], row["lease_id"]))
    db.execute("UPDATE steps SET state = 'trained' WHERE state = 'applied' AND step <= ?", step)
    return len(proven)


def register(db: Database, run_id: str, step: int) -> None:
    known = db.scalar("SELECT id FROM runs WHERE run_id = ?", run_id)
    current = current_run(db)
    if known is not None and current is not None and current["run_id"] != run_id:
        raise FencedRun(f"run {run_id} was replaced by {current['run_id']} and cannot come back")
    db.execute(
        "INSERT INTO runs (run_id, restored_step, taken_step, checkpointed_step, at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (run_id) DO UPDATE SET restored_step = excluded.restored_step,"
        " taken_step = excluded.taken_step, checkpointed_step = excluded.checkpointed_step",
        run_id,
        step,
        step,
        step,
        db.clock(),
    )
