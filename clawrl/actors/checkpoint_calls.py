"""What the trainer tells of itself and asks about checkpoints: see `clawrl.training.checkpointing` for the order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from clawrl.actors.trainer_board import TrainerBoard
from clawrl.ledger.checkpoint_standing import ForeignCheckpoint
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import LedgerPosition

log = logging.getLogger(__name__)


class CheckpointCalls:
    """A part of the coordinator."""

    _db: LedgerThread
    _trainer: TrainerBoard

    async def trainer_state(self, state: str) -> None:
        """The driver's word; repeated, since a coordinator that is restarted forgets it."""
        self._trainer.tell(state)

    async def resumable(self, positions: Sequence[LedgerPosition]) -> tuple[str, int | None]:
        """The ledger's id, and which of these checkpoints (newest first) a run may go on from."""
        try:
            return await self._db.run(lambda ledger: (ledger.ledger_id, ledger.resumable(positions)))
        except ForeignCheckpoint as error:
            self._trainer.tell(f"failed: {error}")
            raise

    async def known(self, positions: Sequence[LedgerPosition]) -> list[bool]:
        """Of each of these checkpoints, whether a run may go on from it."""
        return await self._db.run(lambda ledger: ledger.known(positions))

    async def checkpointing(self, run_id: str, step: int) -> bool:
        """Whether this run's checkpoint of ``step`` may become valid; the ledger is on disk up to it."""
        return await self._db.run(lambda ledger: ledger.checkpointing(run_id, step))

    async def checkpointed(self, run_id: str, step: int) -> bool:
        self._trainer.checkpoint_failed(None)
        return await self._db.run(lambda ledger: ledger.checkpointed(run_id, step))

    async def checkpoint_failed(self, run_id: str, step: int, why: str) -> None:
        """Training goes on; turns since the last checkpoint stay ``applied``, and are replayed after a crash."""
        log.error("run %s: the checkpoint of step %d was not written: %s", run_id, step, why)
        self._trainer.checkpoint_failed(f"step {step}: {why}"[:500])
