"""A policy replica: one engine, and what it tells the coordinator.

In: a `GenerationTask`. Out: the pieces of `Answering`. The finish piece waits until the turn is on the coordinator's
disk, for at most ``ack_timeout_s``; past that the turn goes to the journal on this machine's disk, from where it is
handed in when the coordinator is back. A new or restarted replica loads the current version before Serve sends it
anything, and no request is answered by a version below the floor that came with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from clawrl.actors.answering import Answering
from clawrl.actors.calls import Coordinator
from clawrl.actors.draining import is_draining
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.actors.journal_keys import JournalKeys
from clawrl.actors.ray_metrics import flusher_of, sink_of
from clawrl.actors.recording import Recorder
from clawrl.actors.replica_control import ReplicaControl
from clawrl.actors.snapshot_reader import HeadReader
from clawrl.config import Deployment
from clawrl.engine.choose import make_engine
from clawrl.judging.teacher import Teacher
from clawrl.judging.trouble import Trouble, or_trouble
from clawrl.ledger.codec import Codec
from clawrl.ledger.journal import Journal
from clawrl.ledger.screening import for_a_journal
from clawrl.messages import Message, TeacherRequest, TeacherTargets, TemplateInputs
from clawrl.methods.registry import build_method
from clawrl.metrics import catalogue
from clawrl.metrics.sink import Sink
from clawrl.models import resolve
from clawrl.privacy.logs import redact_logs
from clawrl.privacy.redactor import Redactor, finders_of
from clawrl.serving.pieces import Piece
from clawrl.serving.template import ChatRenderer
from clawrl.weights.fetch import Library
from clawrl.weights.snapshot import base_of

_JOIN_TIMEOUT_S = 120.0


class Rollout:
    """``supervisor`` is only an edge of the graph: whoever depends on it is stopped before it."""

    async def __init__(self, deployment: Deployment, supervisor: DeploymentHandle) -> None:  # type: ignore[misc]  # Serve awaits it
        replica = serve.get_replica_context().replica_id.unique_id
        coordinator = Coordinator(deployment.name)
        self._process = psutil.Process()
        self._node = ray.get_runtime_context().get_node_id()
        folder = await asyncio.to_thread(resolve, deployment.policy.model)
        self._engine = make_engine(
            folder,
            deployment.policy.engine,
            updates=True,
            decide_within_s=deployment.publish.longest_s,
            adapters=deployment.adapters,
        )
        await self._engine.start()
        tokenizer, context = self._engine.tokenizer, self._engine.capabilities.context_length
        privacy, journals = deployment.privacy, deployment.state_path / "journal"
        redactor = await asyncio.to_thread(lambda: Redactor(finders_of(privacy.redaction)))
        redact_logs(redactor)
        self._journal_keys = JournalKeys(coordinator, encrypts=privacy.encrypt)
        await self._journal_keys.start(timeout_s=_JOIN_TIMEOUT_S)
        codec = Codec(self._journal_keys.vault)
        journal = Journal.of_process(
            journals,
            replica,
            codec,
            limit_bytes=int(deployment.serving.journal_mb * 2**20),
            ready=partial(for_a_journal, screen=redactor, keeps_untrainable=privacy.record_untrainable),
        )
        self._journal_keys.used_by(journal)
        self._recorder = Recorder(coordinator, journal, deployment.serving.ack_timeout_s)
        self._recorder.adopt(journals, codec)
        self._answering = Answering(
            self._engine,
            tokenizer,
            deployment.serving,
            self._recorder,
            context_length=context,
            answer_format=deployment.policy.answer_format,
            replica=replica,
            waiting=lambda: self._engine.load.waiting,
            may_rise=lambda: not is_draining(),
            sink=sink_of(deployment.metrics),
        )
        if (flusher := flusher_of(deployment.metrics)) is not None:
            flusher.sample(self._tell_load)
        self._teacher = Teacher(
            self._engine,
            ChatRenderer(tokenizer, context),
            top_k=build_method(deployment.trainer.method).teacher_top_k,
            label=deployment.judge.teacher.label,
            name="policy:current",
        )
        library = Library(
            HeadReader(),
            deployment.state_path / "copies",
            replica,
            base_of=base_of,
            access=deployment.publish.snapshot_access,
        )
        self._control = ReplicaControl(
            replica, self._engine, coordinator, self.stats, library=library, draining=is_draining
        )
        await self._control.join(timeout_s=_JOIN_TIMEOUT_S)

    async def __del__(self) -> None:
        """Graceful stop only: see what was answered into the ledger, then leave."""
        await self._recorder.finish()
        self._journal_keys.close()
        self._answering.close()
        await self._control.leave()
        await self._engine.stop()

    async def check_health(self) -> None:
        self._engine.health()
        self._control.check()

    async def ready(self) -> bool:
        return True

    async def teach(self, request: TeacherRequest) -> TeacherTargets | Trouble:
        """The serving policy as a hinted teacher of itself."""
        return await or_trouble(self._teacher.targets(request))

    def stats(self) -> dict[str, Any]:
        return {
            "running": self._engine.load.running,
            "waiting": self._engine.load.waiting + self._answering.held,
            "unrecorded": self._recorder.unrecorded,
            "journaled": self._recorder.journaled,
            "pid": os.getpid(),
            "node": self._node,
            "memory_mb": round(self._process.memory_info().rss / 2**20),
        }

    def _tell_load(self, sink: Sink) -> None:
        load = self._engine.load
        sink.set(catalogue.RUNNING, load.running)
        sink.set(catalogue.WAITING, load.waiting, until="place")
        sink.set(catalogue.WAITING, self._answering.held, until="weights")

    async def count_tokens(self, messages: Sequence[Message], inputs: TemplateInputs) -> int | Refused:
        """How long the prompt of this request would be, also if it is too long to be served."""
        return await self._answering.count_tokens(messages, inputs)

    async def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, special ones too; joined it is the text of all."""
        return await self._answering.pieces(ids)

    async def generate(self, task: GenerationTask) -> AsyncGenerator[Piece | Refused, None]:
        async with aclosing(self._answering.generate(task)) as pieces:
            async for piece in pieces:
                yield piece
