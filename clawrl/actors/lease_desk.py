"""What the trainer is given for its next step: a batch, nothing yet, or a word that changes its course.

What is too old for the step is dropped here, where the step that would consume it is known. Of the rest a batch is lent
the moment that the schedule lets it: the desk is woken when the queue grows, and by the clock. A pause outranks the
schedule, and word of a rollback or of the end goes out whatever either says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clawrl.actors.judging_desk import JudgingDesk
from clawrl.actors.rollback import pending_rewind
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import LeasedTurns
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import DropReason, Lease, PolicyVersion, Sample, TurnId
from clawrl.training.config import TrainingConfig
from clawrl.training.schedule import Decision, Moment, counted_until, may_train
from clawrl.training.staleness import lag, lag_figures, most_behind


@dataclass(frozen=True, slots=True)
class EndOfTraining:
    """Given to a trainer instead of a lease when the deployment is being stopped."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """Given to a trainer instead of a lease: go on from the weights of this version, with a fresh optimizer."""

    version: PolicyVersion


Order = Lease | Rewind | EndOfTraining | None


class LeaseDesk:
    """``busy`` says whether an answer is being written at this moment; ``clock`` is the time of day."""

    def __init__(
        self,
        db: LedgerThread,
        desk: JudgingDesk,
        config: TrainingConfig,
        queue_grew: asyncio.Event,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db = db
        self._desk = desk
        self._config = config
        self._queue_grew = queue_grew
        self._busy = busy
        self._clock = clock
        self._asked_at = 0.0
        self._training_ends = False

    @property
    def training_ends(self) -> bool:
        return self._training_ends

    def end_training(self) -> None:
        """The next lease that is asked for is the end of the run; it checkpoints and returns."""
        self._training_ends = True
        self._queue_grew.set()

    def note_request(self) -> None:
        """Somebody asked for something just now."""
        self._asked_at = self._clock()

    async def lease(self, run_id: str, step: int, wait_s: float) -> Order:
        """A batch for ``step``, or ``None`` when there is none within ``wait_s``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            if self._training_ends:
                return EndOfTraining()
            if (version := await self._db.run(pending_rewind)) is not None:
                return Rewind(version)
            self._queue_grew.clear()
            self._note_if_busy()
            leased, look_at = await self._db.run(lambda ledger: self._borrow(ledger, run_id, step))
            if leased is not None:
                return await self._as_lease(leased)
            wake = deadline if look_at is None else min(deadline, loop.time() + max(look_at - self._clock(), 0.01))
            try:
                async with asyncio.timeout_at(wake):
                    # One more turn is seldom a full batch: look again after each, for as long as there is time.
                    await self._queue_grew.wait()
            except TimeoutError:
                if loop.time() >= deadline:
                    return None

    async def applied(self, lease_id: str, run_id: str, stats: Mapping[str, Any]) -> bool:
        """The step was taken: what the trainer measured, and how old its samples were, is written down."""
        config = self._config

        def apply(ledger: Ledger) -> bool:
            lags = [lag(behind, config.updates_per_batch) for behind in ledger.behind(lease_id)]
            return ledger.applied(lease_id, run_id, {**stats, **lag_figures(lags, config.staleness)})

        return await self._db.run(apply)

    async def waits(self) -> str | None:
        """What the next step waits for, as the end of "waits ..."; ``None`` if for nothing but the trainer."""
        self._note_if_busy()

        def look(ledger: Ledger) -> str | None:
            if ledger.lent_step() is not None:
                return None
            return "to be resumed" if ledger.paused() is not None else self._decide(ledger).waits

        return await self._db.run(look)

    def _note_if_busy(self) -> None:
        """An answer that is being written counts as a request until it ends."""
        if self._busy():
            self.note_request()

    def _borrow(self, ledger: Ledger, run_id: str, step: int) -> tuple[LeasedTurns | None, float | None]:
        """A batch if there is one, and when to look again if there is none."""
        config, now = self._config, self._clock()
        with ledger.transaction():
            ledger.drop_stale(run_id, step, most_behind(config.staleness.limit, config.updates_per_batch), now)
            decision = self._decide(ledger)
            # Where the reply to an earlier call was lost, the schedule has had its say.
            if decision.waits is not None and ledger.lent_step() != step:
                return None, decision.look_at
            leased = ledger.lease(
                run_id,
                step,
                config.batch_size,
                now=now,
                timeout_s=config.lease_timeout_s,
                minimum=decision.at_least,
            )
            return leased, None

    def _decide(self, ledger: Ledger) -> Decision:
        schedule, now = self._config.schedule, self._clock()
        # The ledger remembers over a restart what was asked before it.
        asked_at = max([self._asked_at, *(row.finished_at for row in ledger.turns(1))])
        moment = Moment(now=now, ready=ledger.queued(counted_until(schedule, now)), last_request_at=asked_at)
        return may_train(schedule, self._config.batch_size, moment)

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
