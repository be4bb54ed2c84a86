"""What the ledger and the last checkpoint say, read from disk when nobody writes there any more."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import StepRow, Transition, TurnRow
from clawrl.messages import DropReason, PolicyVersion, TurnState
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.opening import open_ledger
from clawrl.training.checkpoint import read_step

_ALL = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """``oldest`` and ``newest`` are the versions that sampled it; ``None`` where no token was sampled."""

    turn_id: str
    state: TurnState
    reason: DropReason | None
    step: int | None
    replica: str
    oldest: int | None
    newest: int | None
    text: str
    finish_reason: str
    started_at: float
    finished_at: float
    moves: tuple[Transition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the trainer itself says, in its last checkpoint: see `clawrl.training.weights_lineage`."""

    step: int
    lineage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``recorded`` is the ledger's own count. ``steps`` and ``versions`` are in the order in which they were made."""

    recorded: int
    turns: tuple[TurnFacts, ...]
    steps: tuple[StepRow, ...]
    versions: tuple[PolicyVersion, ...]
    runs: int
    trained: Trained | None


def read_history(state: Path) -> History:
    """``state`` is the deployment's state folder."""
    with open_ledger(state, LedgerConfig(), PrivacyConfig()) as ledger:
        turns = tuple(_facts(ledger, row) for row in reversed(ledger.turns(_ALL)))
        return History(
            recorded=ledger.counts().recorded,
            turns=turns,
            steps=tuple(reversed(ledger.steps(_ALL))),
            versions=tuple(sorted(ledger.versions(_ALL), key=lambda version: version.published_at)),
            runs=len(run_starts(state)),
            trained=last_checkpoint(state),
        )


def run_starts(state: Path) -> list[float]:
    """When each training run reported what it had restored. May be asked while the ledger is in use."""
    with closing(sqlite3.connect(f"file:{state / 'ledger.sqlite'}?mode=ro", uri=True, timeout=10.0)) as db:
        return [at for (at,) in db.execute("SELECT at FROM runs ORDER BY id")]


def last_checkpoint(state: Path) -> Trained | None:
    """Of the checkpoint with the highest step; every rank writes the same lineage."""
    folders = [file.parent for file in state.glob("checkpoints/*/checkpoint.json")]
    if not folders:
        return None
    newest = max(folders, key=lambda folder: (read_step(folder) or 0, folder.name))
    saved = torch.load(next(newest.glob("rank-0-of-*.pt")), map_location="cpu", weights_only=True)
    return Trained(step=saved["step"], lineage=saved["lineage"])


def _facts(ledger: Ledger, row: TurnRow) -> TurnFacts:
    turn = ledger.turn(row.turn_id)
    assert turn is not None
    return TurnFacts(
        turn_id=row.turn_id,
        state=row.state,
        reason=row.drop_reason,
        step=row.step,
        replica=turn.replica,
        oldest=row.oldest_version,
        newest=row.newest_version,
        text=turn.answer.content,
        finish_reason=turn.finish_reason,
        started_at=turn.started_at,
        finished_at=turn.finished_at,
        moves=tuple(ledger.transitions(row.turn_id)),
    )
