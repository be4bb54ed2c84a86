"""The coordinator: the ledger of turns, who judges them, who trains on them, which policy version is current.

A detached named actor that Ray restarts for ever. All that matters is in the ledger on disk; what is in
memory (replicas, an undecided publish, judging under way) rebuilds itself: replicas poll again, the trainer
is told that its publish is gone, turns in ``judging`` are sent to the judge again. Every call may be
repeated by a caller that lost the answer. It loads no model and no torch, so a restart takes a moment.

Holds no weights and is never in the way of a token: linking and judging happen beside generation.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clawrl.actors import rollback
from clawrl.actors.admission import Admission
from clawrl.actors.checkpoint_calls import CheckpointCalls
from clawrl.actors.health_watch import HealthWatch
from clawrl.actors.journal_desk import JournalDesk
from clawrl.actors.judging_desk import JudgeCalls, JudgingDesk
from clawrl.actors.lease_desk import LeaseDesk, Order
from clawrl.actors.metrics_desk import MetricsCalls, MetricsDesk
from clawrl.actors.operator_desk import OperatorDesk
from clawrl.actors.privacy_calls import PrivacyCalls
from clawrl.actors.status import status_document
from clawrl.actors.trainer_board import TrainerBoard
from clawrl.actors.version_calls import VersionCalls
from clawrl.config import Deployment
from clawrl.guards.alarms import Alarm
from clawrl.ledger.codec import Codec
from clawrl.ledger.folder import hold
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import Recorded, Restored
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import Arrival, Feedback, Message, PolicyVersion, Turn, TurnId, WeightManifest, Withheld
from clawrl.methods.base import Method
from clawrl.metrics.sink import NOTHING, Sink
from clawrl.privacy.keys import JOURNAL, StoredKeys
from clawrl.privacy.opening import open_keys, open_ledger
from clawrl.privacy.redactor import Redactor, finders_of
from clawrl.privacy.vault import SealingVault
from clawrl.serving.feedback import FeedbackRequest
from clawrl.weights import members as weights
from clawrl.weights.sources import Rendezvous
from clawrl.weights.transaction import PublishFailed, Publishing

log = logging.getLogger(__name__)


class Coordinator(CheckpointCalls, VersionCalls, PrivacyCalls, MetricsCalls):
    """``calls`` reach the Judge deployment; ``method`` turns judged turns into samples."""

    def __init__(self, deployment: Deployment, method: Method, calls: JudgeCalls, sink: Sink = NOTHING) -> None:
        self._deployment = deployment
        state = deployment.state_path
        self._hold = hold(state, deployment.name)
        privacy = deployment.privacy
        self._keys, self._redactor = open_keys(state, privacy), Redactor(finders_of(privacy.redaction))
        self._db = LedgerThread(
            lambda: open_ledger(state, deployment.ledger, privacy, keys=self._keys, redactor=self._redactor)
        )
        self._members = weights.Members()
        self._publishing = Publishing(self._members, deployment.publish, self._decide)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queue_grew = asyncio.Event()
        self._admission = Admission(deployment)
        self._metrics = MetricsDesk(sink, self._db, self._members.describe, lambda: self._health.describe())
        self._desk = JudgingDesk(self._db, method, calls, deployment.judge, self._queue_grew.set, self._metrics.judged)
        training = deployment.trainer.training
        self._leases = LeaseDesk(self._db, self._desk, training, self._queue_grew, self._members.busy)
        alarms = deployment.guards.alarms
        self._health = HealthWatch(self._db, calls.vitals, alarms, state / "guards.json", self._freeze)
        self._trainer = TrainerBoard(self._db)
        self._operator = OperatorDesk(
            deployment,
            self._db,
            self._keys,
            self._desk,
            self._leases,
            self._publishing,
            self._trainer,
            self._queue_grew.set,
        )
        codec = Codec(SealingVault(StoredKeys.of(self._keys, JOURNAL), encrypts=privacy.encrypt))
        self._journals = JournalDesk(state / "journal", codec, self.record)
        self._began_at = time.time()
        self._one_forgetting = asyncio.Lock()
        self._spawn(self._finish_forgetting())
        self._spawn(self._desk.take_what_is_owed())
        self._spawn(self._every(5.0, self._desk.take_what_is_owed))
        self._spawn(self._every(deployment.ledger.sweep_s, self._sweep))
        self._spawn(self._every(3.0, self._journals.take_in))
        self._spawn(self._every(0.5, self._help_late_replicas))
        self._spawn(self._every(5.0, self._health.freeze_if_alarmed))
        self._spawn(self._every(deployment.metrics.ledger_s, self._metrics.look))

    async def ping(self) -> int:
        """The process id; the supervisor's health check."""
        return os.getpid()

    async def settings(self) -> str:
        """What this was made for; nothing that anybody wants once it is being stopped."""
        return "" if self._leases.training_ends else self._deployment.model_dump_json()

    async def close(self) -> None:
        """Leave a tidy file behind. The state is safe without this, too."""
        self._desk.close()
        self._health.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._db.close)
        self._hold.release()

    # -- turns --------------------------------------------------------------------------------------

    async def arrive(self, arrival: Arrival) -> int:
        """A request has come in: its new messages may be the evidence for an earlier turn. Returns the floor."""
        self._leases.note_request()
        await self._scanned(arrival)
        linked = await self._db.run(lambda ledger: ledger.arrive(arrival))
        if linked.to_judge is not None:
            self._desk.take(linked.to_judge)
        return self._members.floor()

    async def record(self, turn: Turn) -> str:
        """Store a served turn; returns its session once it is on disk."""
        await self._scanned(turn)
        against = await self._admission.reason_against(turn)

        def store(ledger: Ledger) -> Recorded:
            return ledger.record(turn, *(against or self._admission.seen(ledger, turn) or ()))

        recorded = await self._db.run(store)
        for request in recorded.to_judge:
            self._desk.take(request)
        if recorded.new:
            self._health.note(replace(turn, session=recorded.session))
        return recorded.session

    async def feedback(self, asked: FeedbackRequest, owner: str) -> dict[str, Any] | None:
        """A person's word on a turn of theirs; ``None`` if there is no such turn."""

        def give(ledger: Ledger) -> Any:
            turn_id = asked.turn_id or ledger.latest_turn(owner, asked.session or "")
            turn = None if turn_id is None else ledger.turn(TurnId(turn_id))
            if turn is None or turn.arrival.owner != owner:
                return None
            given = Feedback(turn_id=turn.turn_id, score=asked.score, comment=asked.comment, given_at=time.time())
            return turn.turn_id, ledger.feedback(given)

        found = await self._db.run(give)
        if found is None or found[1] is None:
            return None
        turn_id, taken = found
        if taken.to_judge is not None:
            self._desk.take(taken.to_judge)
        return {"turn_id": turn_id, "outcome": taken.outcome.value, "state": taken.state.value}

    async def answered(self, turn_id: TurnId, owner: str) -> tuple[Arrival, Message] | None:
        """The request of this turn and its answer; ``None`` if the owner has no such turn."""
        turn = await self._db.run(lambda ledger: ledger.turn(turn_id))
        if turn is None or turn.arrival.owner != owner or turn.withheld is Withheld.ALL:
            return None
        return turn.arrival, turn.answer

    async def end_session(self, owner: str, session: str) -> int:
        """Nothing more will be said in it: what waits for evidence is dropped. Returns how many turns did."""
        return await self._db.run(lambda ledger: ledger.end_session(owner, session))

    # -- submission ---------------------------------------------------------------------------------

    async def pause(self, by: str, reason: str) -> None:
        await self._db.run(lambda ledger: ledger.pause(by, reason))

    async def resume(self) -> int:
        """Let judged turns into the queue again; returns how many had been waiting."""
        self._health.resume()
        released = await self._db.run(lambda ledger: ledger.resume())
        self._queue_grew.set()
        return released

    async def _freeze(self, alarm: Alarm, healthy: Sequence[int]) -> None:
        """Stop learning, and serve the last version that was found healthy. Repeated after a restart."""
        await self._db.run(lambda ledger: ledger.pause("guard", alarm.reason))
        await self._publishing.abort_open(f"the guard's alarm {alarm.name}")
        again = await self._db.run(lambda ledger: rollback.roll_back(ledger, alarm, healthy))
        now = "nothing older can be served" if again is None else f"version {again.version} serves: {again.stats}"
        log.error("alarm %s: %s %s", alarm.name, alarm.reason, now)

    # -- training -----------------------------------------------------------------------------------

    async def restored(self, run_id: str, step: int, rewound_to: int = 0) -> tuple[Restored, PolicyVersion | None]:
        """A training run begins from a checkpoint with steps up to ``step``; runs before it are fenced off."""
        self._trainer.begins()
        await self._publishing.abort_open("a new training run begins")
        restored = await self._db.run(lambda ledger: ledger.restored(run_id, step))
        await self._db.run(lambda ledger: rollback.restored_from(ledger, rewound_to))
        log.info("training run %s starts at step %d: %s", run_id, step, restored)
        return restored, await self.current_version()

    async def lease(self, run_id: str, step: int, wait_s: float) -> Order:
        order = await self._leases.lease(run_id, step, wait_s)
        self._trainer.goes_on()
        return order

    async def confirm(self, lease_id: str, run_id: str) -> bool:
        """The fence: the optimizer step may be taken only if this is true."""
        return await self._db.run(lambda ledger: ledger.confirm(lease_id, run_id, time.time()))

    async def applied(self, lease_id: str, run_id: str, stats: Mapping[str, Any]) -> bool:
        return await self._leases.applied(lease_id, run_id, stats)

    async def end_training(self) -> None:
        self._leases.end_training()

    # -- publishing ---------------------------------------------------------------------------------

    async def begin_publish(
        self, run_id: str, manifest: WeightManifest, step: int, snapshot: str, host: str, port: int
    ) -> Rendezvous:
        current, refusal = await self._db.run(
            lambda ledger: (ledger.is_current(run_id), rollback.why_not_publish(ledger))
        )
        if not current:
            raise PublishFailed(f"training run {run_id} has been replaced")
        if refusal is not None:
            raise PublishFailed(refusal)
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

    async def poll(self, replica: str, version: int, stats: Mapping[str, Any], wait_s: float) -> weights.Order | None:
        self._journals.note(replica, stats)
        return await self._members.poll(replica, version, stats, timeout_s=wait_s)

    async def report(self, replica: str, number: int, version: int, outcome: weights.Outcome) -> None:
        self._members.report(replica, number, version, outcome)

    async def leave(self, replica: str) -> None:
        self._members.leave(replica)

    async def _help_late_replicas(self) -> None:
        await self._publishing.catch_up(await self.current_version())

    # -- looking ------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        document = await self._db.run(lambda ledger: status_document(self._deployment, ledger))
        replicas = self._members.describe()
        return document | {
            "floor": self._members.floor(),
            "replicas": replicas,
            **self._journals.figures(replicas),
            "trainer": await self._trainer.describe() | {"waits": await self._leases.waits()},
            "guards": self._health.describe(),
            "coordinator": {"pid": os.getpid(), "up_since": self._began_at},
        }

    async def operator(self, view: str, *arguments: Any) -> Any:
        """What an operator looks at or decides: a public method of `OperatorDesk`."""
        return await getattr(self._operator, view)(*arguments)

    # -- background ---------------------------------------------------------------------------------

    async def _every(self, period_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except Exception:
                log.exception("background work %s failed", work.__name__)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        # In a context of its own: Ray cancels what it knows by the context of a caller who went away.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
