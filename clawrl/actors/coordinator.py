"""The coordinator: the ledger of turns, who judges them, who trains on them, which policy version is current.

A detached named actor that Ray restarts for ever. All that matters is in the ledger on disk; what is in
memory (replicas, an undecided publish, judging under way) rebuilds itself: replicas poll again, the trainer
is told that its publish is gone, turns in ``judging`` are sent to the judge again. Every call may be
repeated by a caller that lost the answer. It loads no model and no torch, so a restart takes a moment.

Holds no weights and is never in the way of a token: linking and judging happen beside generation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from clawrl.actors.judging_desk import AskJudge, JudgingDesk
from clawrl.actors.status import status_document
from clawrl.config import Deployment
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import LeasedTurns, Restored
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import (
    Arrival,
    DropReason,
    Lease,
    PolicyVersion,
    Sample,
    Turn,
    WeightManifest,
)
from clawrl.methods.base import Method
from clawrl.serving.trainability import drop_reason
from clawrl.weights.members import Members, Order, Outcome
from clawrl.weights.rendezvous import Rendezvous
from clawrl.weights.transaction import PublishFailed, Publishing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndOfTraining:
    """Given to a trainer instead of a lease when the deployment is being stopped."""


class Coordinator:
    """``ask_judge`` reaches the Judge deployment; ``method`` turns judged turns into samples."""

    def __init__(self, deployment: Deployment, method: Method, ask_judge: AskJudge) -> None:
        self._deployment = deployment
        self._training = deployment.trainer.training
        state = deployment.state_path
        state.mkdir(parents=True, exist_ok=True)
        self._db = LedgerThread(lambda: Ledger(state / "ledger.sqlite", deployment.ledger))
        self._members = Members()
        self._publishing = Publishing(self._members, deployment.publish, self._decide)
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue_grew = asyncio.Event()
        self._desk = JudgingDesk(self._db, method, ask_judge, deployment.judge.verdict, self._queue_grew.set)
        self._trainer: dict[str, Any] = {"state": "starting"}
        self._training_ends = False
        self._unrecorded: dict[str, int] = {}
        self._began_at = time.time()
        self._spawn(self._desk.take_what_is_owed())
        self._spawn(self._every(5.0, self._desk.take_what_is_owed))
        self._spawn(self._every(deployment.ledger.sweep_s, self._sweep))
        self._spawn(self._every(0.5, self._help_late_replicas))

    async def ping(self) -> int:
        """The process id; the supervisor's health check."""
        return os.getpid()

    async def settings(self) -> str:
        """What this was made for; nothing that anybody wants once it is being stopped."""
        return "" if self._training_ends else self._deployment.model_dump_json()

    async def close(self) -> None:
        """Leave a tidy file behind. The state is safe without this, too."""
        self._desk.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._db.close)

    # -- turns --------------------------------------------------------------------------------------

    async def arrive(self, arrival: Arrival) -> None:
        """A request has come in: its new messages may be the evidence for an earlier turn."""
        linked = await self._db.run(lambda ledger: ledger.arrive(arrival))
        if linked.to_judge is not None:
            self._desk.take(linked.to_judge)

    async def record(self, turn: Turn) -> str:
        """Store a served turn; returns its session once it is on disk."""
        reason = drop_reason(turn, self._training.max_sample_tokens)
        recorded = await self._db.run(lambda ledger: ledger.record(turn, reason))
        for request in recorded.to_judge:
            self._desk.take(request)
        return recorded.session

    # -- submission ---------------------------------------------------------------------------------

    async def pause(self, by: str, reason: str) -> None:
        await self._db.run(lambda ledger: ledger.pause(by, reason))

    async def resume(self) -> int:
        """Let judged turns into the queue again; returns how many had been waiting."""
        released = await self._db.run(lambda ledger: ledger.resume())
        self._queue_grew.set()
        return released

    # -- training -----------------------------------------------------------------------------------

    async def restored(self, run_id: str, step: int) -> tuple[Restored, PolicyVersion | None]:
        """A training run begins from a checkpoint with steps up to ``step``; runs before it are fenced off."""
        self._trainer = {"state": "running", "step": step}
        await self._publishing.abort_open("a new training run begins")
        restored = await self._db.run(lambda ledger: ledger.restored(run_id, step))
        log.info("training run %s starts at step %d: %s", run_id, step, restored)
        return restored, await self.current_version()

    async def lease(self, run_id: str, step: int, wait_s: float) -> Lease | EndOfTraining | None:
        """A full batch for ``step``, or ``None`` when there is none within ``wait_s``."""
        if self._training_ends:
            return EndOfTraining()
        self._queue_grew.clear()
        leased = await self._lease(run_id, step)
        if leased is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._queue_grew.wait()
            except TimeoutError:
                return None
            leased = await self._lease(run_id, step)
        return None if leased is None else await self._as_lease(leased)

    async def _lease(self, run_id: str, step: int) -> LeasedTurns | None:
        training = self._training

        def borrow(ledger: Ledger) -> LeasedTurns | None:
            # Counted in versions that were published: failed publishes leave gaps in the numbers.
            recent = ledger.versions(training.max_staleness + 1)
            oldest = recent[-1].version if len(recent) > training.max_staleness else 0
            return ledger.lease(
                run_id,
                step,
                training.batch_size,
                now=time.time(),
                timeout_s=training.lease_timeout_s,
                min_version=oldest,
            )

        return await self._db.run(borrow)

    async def _as_lease(self, leased: LeasedTurns) -> Lease:
        samples = []
        for turn, judgement in leased.turns:
            made = self._desk.sample_of(turn, judgement)
            if isinstance(made, Sample):
                samples.append(made)
            else:
                # Possible when a restart brought other method settings; the lease goes on without it.
                await self._drop_leased(leased.lease_id, turn, made)
        return Lease(
            lease_id=leased.lease_id,
            run_id=leased.run_id,
            step=leased.step,
            samples=tuple(samples),
            deadline=leased.deadline,
        )

    async def _drop_leased(self, lease_id: str, turn: Turn, reason: DropReason) -> None:
        await self._db.run(lambda ledger: ledger.drop_leased(lease_id, turn.turn_id, reason))

    async def confirm(self, lease_id: str, run_id: str) -> bool:
        """The fence: the optimizer step may be taken only if this is true."""
        return await self._db.run(lambda ledger: ledger.confirm(lease_id, run_id, time.time()))

    async def applied(self, lease_id: str, run_id: str, stats: Mapping[str, Any]) -> bool:
        self._trainer = {**self._trainer, "last_metrics": dict(stats)}
        return await self._db.run(lambda ledger: ledger.applied(lease_id, run_id, stats))

    async def checkpointed(self, run_id: str, step: int) -> bool:
        return await self._db.run(lambda ledger: ledger.checkpointed(run_id, step))

    async def end_training(self) -> None:
        """The next lease that is asked for is the end of the run; it checkpoints and returns."""
        self._training_ends = True
        self._queue_grew.set()

    async def trainer_state(self, state: str) -> None:
        self._trainer = {**self._trainer, "state": state}

    # -- publishing ---------------------------------------------------------------------------------

    async def current_version(self) -> PolicyVersion | None:
        return await self._db.run(lambda ledger: ledger.current_version())

    async def next_version(self) -> int:
        return await self._db.run(lambda ledger: ledger.next_version())

    async def begin_publish(
        self, run_id: str, manifest: WeightManifest, step: int, snapshot: str, host: str, port: int
    ) -> Rendezvous:
        if not await self._db.run(lambda ledger: ledger.is_current(run_id)):
            raise PublishFailed(f"training run {run_id} has been replaced")
        return await self._publishing.begin(manifest, step, snapshot, host, port)

    async def finish_publish(self, publish_id: str) -> PolicyVersion:
        version = await self._publishing.finish(publish_id)
        await self._db.run(lambda ledger: ledger.annotate_version(version.version, version.stats))
        return version

    async def abort_publish(self, publish_id: str, reason: str) -> None:
        await self._publishing.abort(publish_id, reason)

    async def _decide(self, version: PolicyVersion) -> None:
        await self._db.run(lambda ledger: ledger.commit_version(version))

    # -- replicas -----------------------------------------------------------------------------------

    async def poll(self, replica: str, version: int, stats: Mapping[str, Any], wait_s: float) -> Order | None:
        self._unrecorded[replica] = int(stats.get("unrecorded", 0))
        return await self._members.poll(replica, version, stats, timeout_s=wait_s)

    async def report(self, replica: str, number: int, version: int, outcome: Outcome) -> None:
        self._members.report(replica, number, version, outcome)

    async def leave(self, replica: str) -> None:
        self._members.leave(replica)

    async def _help_late_replicas(self) -> None:
        current = await self.current_version()
        if current is not None:
            await self._publishing.catch_up(current)

    # -- looking ------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        document = await self._db.run(lambda ledger: status_document(self._deployment.name, ledger))
        return document | {
            "replicas": self._members.describe(),
            "unrecorded": sum(self._unrecorded.values()),
            "trainer": self._trainer,
            "coordinator": {"pid": os.getpid(), "up_since": self._began_at},
        }

    async def turns(self, limit: int) -> list[dict[str, Any]]:
        rows = await self._db.run(lambda ledger: ledger.turns(limit))
        return [
            {
                "turn_id": row.turn_id,
                "session": row.session,
                "state": row.state.value,
                "drop_reason": row.drop_reason.value if row.drop_reason else None,
                "verdict": None if row.verdict is None else int(row.verdict),
                "score": row.score,
                "step": row.step,
                "version": row.oldest_version,
            }
            for row in rows
        ]

    # -- background ---------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        await self._db.run(lambda ledger: ledger.sweep(time.time()))
        while await self._db.run(lambda ledger: ledger.prune()):
            pass

    async def _every(self, period_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except Exception:
                log.exception("background work %s failed", work.__name__)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
