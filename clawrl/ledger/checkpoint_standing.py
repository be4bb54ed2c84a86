"""Which checkpoints belong to the history that this ledger knows.

A checkpoint names its `LedgerPosition`: the ledger, the run that wrote it and the last step in its weights. Since the
ledger is on disk up to that position before the checkpoint becomes valid, one that this ledger does not know is of

* another ledger (the file was swapped or deleted): refused, since nothing is known of what those weights have learned;
* a later state of this one (an older copy of the file was put back): passed over, an older checkpoint is taken if there
  is one, else refused, since turns in the queue may already be in those weights;
* a run that had been replaced when it wrote it (it slept through its end): passed over, since its later turns went
  back to the queue.

A refusal changes nothing on disk, and names the remedies.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from clawrl.ledger.database import Database
from clawrl.messages import LedgerPosition

_REMEDY = (
    "put the ledger.sqlite back that it was written with; or keep the weights and begin a new history: "
    "`clawrl export` them, name the folder as policy.model.source and give the deployment another state_dir; "
    "or move checkpoints/ away to train from the model as it came"
)


class ForeignCheckpoint(RuntimeError):
    """What is on disk belongs to another history than this ledger's; the text names the remedies."""


class Standing(enum.StrEnum):
    """What a position is to this ledger."""

    KNOWN = "known"
    FOREIGN = "of another ledger"
    AHEAD = "of a later state of this ledger"
    REPLACED = "of a run that had been replaced"


def ledger_id(db: Database) -> str:
    """Made together with the ledger, and shared by copies of it."""
    found: str = db.scalar("SELECT ledger_id FROM identity")
    return found


def standing(db: Database, position: LedgerPosition) -> Standing:
    if position.ledger != ledger_id(db):
        return Standing.FOREIGN
    run = db.one("SELECT id, taken_step FROM runs WHERE run_id = ?", position.run)
    if run is None:
        return Standing.AHEAD
    # Where each later run began, all before it is history and all behind it was undone.
    kept = db.scalar("SELECT min(restored_step) FROM runs WHERE id > ?", run["id"])
    if kept is not None and position.step > kept:
        return Standing.REPLACED
    return Standing.KNOWN if position.step <= run["taken_step"] else Standing.AHEAD


def is_known(db: Database, position: LedgerPosition) -> bool:
    """Whether training may go on from a checkpoint there."""
    return standing(db, position) is Standing.KNOWN


def resumable(db: Database, positions: Sequence[LedgerPosition]) -> int | None:
    """The first of ``positions`` (newest first) that training may go on from; ``None``: it starts from the model.

    Raises `ForeignCheckpoint`.
    """
    seen = [standing(db, position) for position in positions]
    if Standing.FOREIGN in seen:
        other = positions[seen.index(Standing.FOREIGN)]
        raise ForeignCheckpoint(
            f"the checkpoint of step {other.step} was written with ledger {other.ledger[:8]}, but this state folder's "
            f"is {ledger_id(db)[:8]}: {_REMEDY}"
        )
    if Standing.KNOWN in seen:
        return seen.index(Standing.KNOWN)
    if Standing.AHEAD in seen:
        step = positions[seen.index(Standing.AHEAD)].step
        taken = db.scalar("SELECT max(taken_step) FROM runs") or 0
        raise ForeignCheckpoint(
            f"the checkpoint of step {step} is newer than this ledger, which knows of steps up to {taken}: {_REMEDY}"
        )
    return None
