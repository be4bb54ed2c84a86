"""What the trainer is given for its next step: a full batch, nothing yet, or a word that changes its course."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from clawrl.actors.judging_desk import JudgingDesk
from clawrl.actors.rollback import pending_rewind
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import LeasedTurns
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import DropReason, Lease, PolicyVersion, Sample, TurnId
from clawrl.training.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class EndOfTraining:
    """Given to a trainer instead of a lease when the deployment is being stopped."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """Given to a trainer instead of a lease: go on from the weights of this version, with a fresh optimizer."""

    version: PolicyVersion


Order = Lease | Rewind | EndOfTraining | None


class LeaseDesk:
    def __init__(self, db: LedgerThread, desk: JudgingDesk, config: TrainingConfig, queue_grew: asyncio.Event) -> None:
        self._db = db
        self._desk = desk
        self._config = config
        self._queue_grew = queue_grew
        self._training_ends = False

    @property
    def training_ends(self) -> bool:
        return self._training_ends

    def end_training(self) -> None:
        """The next lease that is asked for is the end of the run; it checkpoints and returns."""
        self._training_ends = True
        self._queue_grew.set()

    async def lease(self, run_id: str, step: int, wait_s: float) -> Order:
        """A full batch for ``step``, or ``None`` when there is none within ``wait_s``."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            if self._training_ends:
                return EndOfTraining()
            if (version := await self._db.run(pending_rewind)) is not None:
                return Rewind(version)
            self._queue_grew.clear()
            if (leased := await self._borrow(run_id, step)) is not None:
                return await self._as_lease(leased)
            try:
                async with asyncio.timeout_at(deadline):
                    # One more turn is seldom a full batch: look again after each, for as long as there is time.
                    await self._queue_grew.wait()
            except TimeoutError:
                return None

    async def _borrow(self, run_id: str, step: int) -> LeasedTurns | None:
        config = self._config

        def borrow(ledger: Ledger) -> LeasedTurns | None:
            # Counted in versions that were published: failed publishes leave gaps in the numbers.
            recent = ledger.versions(config.max_staleness + 1)
            oldest = recent[-1].version if len(recent) > config.max_staleness else 0
            return ledger.lease(
                run_id,
                step,
                config.batch_size,
                now=time.time(),
                timeout_s=config.lease_timeout_s,
                min_version=oldest,
            )

        return await self._db.run(borrow)

    async def _as_lease(self, leased: LeasedTurns) -> Lease:
        samples = []
        for judged in leased.turns:
            made = self._desk.sample_of(judged.turn, judged.judgement, judged.teacher)
            if isinstance(made, Sample):
                samples.append(made)
            else:
                # Possible when a restart brought other method settings; the lease goes on without it.
                await self._drop(leased.lease_id, judged.turn.turn_id, made)
        return Lease(
            lease_id=leased.lease_id,
            run_id=leased.run_id,
            step=leased.step,
            samples=tuple(samples),
            deadline=leased.deadline,
        )

    async def _drop(self, lease_id: str, turn_id: TurnId, reason: DropReason) -> None:
        await self._db.run(lambda ledger: ledger.drop_leased(lease_id, turn_id, reason))
