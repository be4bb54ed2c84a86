"""A policy replica: one engine, the turns it is generating, and their way into the ledger.

In: a `GenerationTask` with ready prompt ids. Out: text pieces as tokens are sampled, then a finish piece. The
finish piece waits until the turn is on the coordinator's disk, for at most ``ack_timeout_s``; past that the
turn is counted as unrecorded and the client gets its answer all the same. A client that goes away frees
the slot at once and its turn is recorded as aborted.

A new or restarted replica loads the current version before Serve sends it anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import psutil
from ray import serve
from ray.serve.handle import DeploymentHandle

from clawrl.actors.calls import Background, Coordinator, CoordinatorAway
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.actors.replica_control import ReplicaControl
from clawrl.actors.transcript import Transcript
from clawrl.config import Deployment
from clawrl.engine.protocol import GenerateRequest, UnsupportedRequest
from clawrl.engine.transformers import TransformersEngine
from clawrl.judging.teacher import Teacher
from clawrl.messages import FinishReason, TeacherRequest, TeacherTargets, Turn
from clawrl.methods.registry import build_method
from clawrl.models import resolve
from clawrl.serving.chat_stream import Piece
from clawrl.serving.template import ChatRenderer

log = logging.getLogger(__name__)
_JOIN_TIMEOUT_S = 120.0
_UNAWAITED_TIMEOUT_S = 300.0


class Rollout:
    """``supervisor`` is only an edge of the graph: whoever depends on it is stopped before it."""

    async def __init__(self, deployment: Deployment, supervisor: DeploymentHandle) -> None:  # type: ignore[misc]  # Serve awaits it
        self._serving = deployment.serving
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._coordinator = Coordinator(deployment.name)
        self._unrecorded = 0
        self._recording = Background()
        self._process = psutil.Process()
        folder = await asyncio.to_thread(resolve, deployment.policy.model)
        self._engine = TransformersEngine(folder, deployment.policy.engine)
        await self._engine.start()
        method, context = build_method(deployment.trainer.method), self._engine.capabilities.context_length
        self._teacher = Teacher(
            self._engine,
            ChatRenderer(self._engine.tokenizer, context),
            top_k=method.teacher_top_k,
            label=deployment.judge.teacher.label,
            name="policy:current",
        )
        self._control = ReplicaControl(self._replica, self._engine, self._coordinator, self.stats)
        await self._control.join(timeout_s=_JOIN_TIMEOUT_S)

    async def __del__(self) -> None:
        """Graceful stop only: see what was answered into the ledger, then leave."""
        await self._recording.finish(timeout_s=self._serving.ack_timeout_s)
        await self._control.leave()
        await self._engine.stop()

    async def check_health(self) -> None:
        self._engine.health()
        self._control.check()

    async def ready(self) -> bool:
        return True

    async def teach(self, request: TeacherRequest) -> TeacherTargets:
        """The serving policy as a hinted teacher of itself."""
        return await self._teacher.targets(request)

    def stats(self) -> dict[str, Any]:
        return {
            "running": self._engine.slots.running,
            "waiting": self._engine.slots.waiting,
            "unrecorded": self._unrecorded,
            "pid": os.getpid(),
            "memory_mb": round(self._process.memory_info().rss / 2**20),
        }

    async def generate(self, task: GenerationTask) -> AsyncGenerator[Piece | Refused, None]:
        if self._engine.slots.waiting >= self._serving.max_waiting_requests:
            yield Refused(message="Too many requests are waiting for this model.", overloaded=True)
            return
        transcript = Transcript(task, self._engine.tokenizer, replica=self._replica, version=self._engine.version)
        request = GenerateRequest(request_id=task.arrival.turn_id, prompt_ids=task.prompt_ids, sampling=task.sampling)
        try:
            async with aclosing(self._engine.generate(request)) as chunks:
                try:
                    async with asyncio.timeout(self._serving.hold_timeout_s):
                        chunk = await anext(chunks)
                except UnsupportedRequest as refusal:
                    yield Refused(message=str(refusal), param=refusal.param)
                    return
                except TimeoutError:
                    yield Refused(message="No slot became free in time.", overloaded=True)
                    return
                while True:
                    if (piece := transcript.add(chunk)) is not None:
                        yield piece
                    if chunk.finish_reason is not None:
                        break
                    chunk = await anext(chunks)
        except (asyncio.CancelledError, GeneratorExit):
            # No await here: the task is being torn down. Recording goes on by itself.
            self._record_unawaited(transcript.turn(FinishReason.ABORTED))
            raise
        except Exception:
            self._record_unawaited(transcript.turn(FinishReason.ERROR))
            raise
        turn = transcript.turn(chunk.finish_reason)
        # Shielded: the answer is complete, so a client that leaves now changes nothing about the turn.
        await asyncio.shield(self._recording.start(self._record(turn, timeout_s=self._serving.ack_timeout_s)))
        yield transcript.finish(turn)

    def _record_unawaited(self, turn: Turn) -> None:
        """No client waits for this one, so it has more time."""
        self._recording.start(self._record(turn, timeout_s=_UNAWAITED_TIMEOUT_S))

    async def _record(self, turn: Turn, *, timeout_s: float) -> None:
        """Until it is on disk or the time is up; an error of the ledger may pass, so it is asked again, too."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                await self._coordinator.ask("record", turn, timeout_s=max(left, 0.1))
                return
            except Exception as error:
                if isinstance(error, CoordinatorAway) or left < 1.0:
                    self._unrecorded += 1
                    log.error("turn %s was served but not recorded: %r", turn.turn_id, error)
                    return
            await asyncio.sleep(1.0)
