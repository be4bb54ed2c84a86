"""What the trainer asks the coordinator about its checkpoints and snapshots.

See `clawrl.training.checkpointing` for the order.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from clawrl.config import Deployment
from clawrl.ledger.lineage import ForeignCheckpoint
from clawrl.ledger.store import Ledger
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import LedgerPosition

log = logging.getLogger(__name__)


class CheckpointCalls:
    """A part of the coordinator. ``_trainer`` is shown in the status."""

    _deployment: Deployment
    _db: LedgerThread
    _trainer: Mapping[str, Any]

    async def resumable(self, positions: Sequence[LedgerPosition]) -> tuple[str, int | None]:
        """The ledger's id, and which of these checkpoints (newest first) a run may go on from."""
        try:
            return await self._db.run(lambda ledger: (ledger.ledger_id, ledger.resumable(positions)))
        except ForeignCheckpoint as error:
            self._trainer = {"state": f"failed: {error}"}
            raise

    async def checkpointing(self, run_id: str, step: int) -> bool:
        """Whether this run's checkpoint of ``step`` may become valid; the ledger is on disk up to it."""
        return await self._db.run(lambda ledger: ledger.checkpointing(run_id, step))

    async def checkpointed(self, run_id: str, step: int) -> bool:
        self._trainer = {key: value for key, value in self._trainer.items() if key != "checkpoint_error"}
        return await self._db.run(lambda ledger: ledger.checkpointed(run_id, step))

    async def checkpoint_failed(self, run_id: str, step: int, why: str) -> None:
        """Training goes on; turns since the last checkpoint stay ``applied``, and are replayed after a crash."""
        log.error("run %s: the checkpoint of step %d was not written: %s", run_id, step, why)
        self._trainer = {**self._trainer, "checkpoint_error": f"step {step}: {why}"[:500]}

    async def snapshots_in_use(self) -> list[str]:
        """Snapshots that must stay on disk: what serves, the newest good ones, the start."""
        teacher = self._deployment.judge.teacher.version
        numbers = {0, teacher} if isinstance(teacher, int) else {0}

        def look(ledger: Ledger) -> list[str]:
            kept = [ledger.current_version(), *ledger.good_versions(), *map(ledger.version, numbers)]
            return [version.snapshot for version in kept if version is not None]

        return await self._db.run(look)
