"""The judge: frozen models that say what a reaction means, what would have been better, and how answers look to them.

It never trains and keeps no state. It judges (verdict and hints), teaches (log-probs of a response under a hint) and
measures (vitals under the starting policy). Models are loaded once: the judge's own, and the starting policy beside it
only where it is another model and somebody needs it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from pathlib import Path

from transformers import AutoTokenizer

from clawrl.actors.calls import Coordinator
from clawrl.actors.snapshot_reader import HeadReader
from clawrl.config import Deployment
from clawrl.engine.catch_up import catch_up
from clawrl.engine.choose import make_engine
from clawrl.engine.protocol import Engine
from clawrl.judging.choose import engine_must_generate, hint_source, verdict_judge
from clawrl.judging.hints import HintSource, NoHints
from clawrl.judging.panel import JudgePanel, VerdictJudge
from clawrl.judging.rewards import RewardError, RewardFunction, reward_function
from clawrl.judging.teacher import Teacher, TeacherError, check_same_tokenizer
from clawrl.judging.trouble import Trouble, or_trouble
from clawrl.judging.vitals import VitalsError, VitalsMeter
from clawrl.messages import (
    Judgement,
    JudgeRequest,
    ModelVitals,
    PolicyVersion,
    TeacherRequest,
    TeacherTargets,
    VitalsRequest,
)
from clawrl.methods.base import JudgementNeed
from clawrl.methods.registry import build_method
from clawrl.models import resolve
from clawrl.privacy.logs import redact_logs_by
from clawrl.serving.template import ChatRenderer
from clawrl.weights.fetch import Library, SnapshotUnreachable
from clawrl.weights.snapshot import base_of


class Judge:
    async def __init__(self, deployment: Deployment) -> None:  # type: ignore[misc]  # Serve awaits it
        await asyncio.to_thread(redact_logs_by, deployment.privacy.redaction)
        self._deployment = deployment
        self._engines: list[Engine] = []
        self._library = Library(
            HeadReader(),
            deployment.state_path / "copies",
            f"judge-{uuid.uuid4().hex}",
            base_of=base_of,
            access=deployment.publish.snapshot_access,
        )
        self._method = build_method(deployment.trainer.method)
        self._policy_folder = await asyncio.to_thread(resolve, deployment.policy.model)
        folder = await asyncio.to_thread(resolve, deployment.judge_model)
        self._engine = await self._start(
            folder,
            generates=engine_must_generate(
                deployment.judge.verdict, deployment.judge.hints, wants_hints=JudgementNeed.HINTS in self._method.needs
            ),
        )
        self._start_policy = self._engine if folder == self._policy_folder else None
        self._panel = JudgePanel(await self._verdict(folder), self._hint_source(), deployment.judge.hints)
        self._teacher = await self._make_teacher() if JudgementNeed.TEACHER in self._method.needs else None
        probes = deployment.guards.alarms.probe_every
        self._meter = VitalsMeter(await self._frozen_policy()) if probes else None

    async def judge(self, request: JudgeRequest) -> Judgement | Trouble:
        return await or_trouble(self._panel.judge(request))

    async def teach(self, request: TeacherRequest) -> TeacherTargets | Trouble:
        if self._teacher is None:
            raise TeacherError("this judge was started without a teacher: the method needs none, or the policy teaches")
        return await or_trouble(self._teacher.targets(request))

    async def vitals(self, request: VitalsRequest) -> ModelVitals:
        if self._meter is None:
            raise VitalsError("this judge was started without vitals: guards.alarms.probe_every is 0")
        return await self._meter.measure(request)

    async def ready(self) -> bool:
        return True

    async def check_health(self) -> None:
        for engine in self._engines:
            engine.health()

    async def __del__(self) -> None:
        for engine in self._engines:
            await engine.stop()
        await self._library.close()

    # -- start --------------------------------------------------------------------------------------

    async def _start(self, folder: Path, *, generates: bool = False, updates: bool = False) -> Engine:
        publish = self._deployment.publish
        engine = make_engine(
            folder,
            self._deployment.judge.engine,
            generates=generates,
            updates=updates,
            decide_within_s=publish.longest_s,
            adapters=self._deployment.adapters_for(self._deployment.judge.engine) if updates else None,
        )
        await engine.start()
        self._engines.append(engine)
        return engine

    async def _frozen_policy(self) -> Engine:
        if self._start_policy is None:
            self._start_policy = await self._start(self._policy_folder)
        return self._start_policy

    async def _verdict(self, folder: Path) -> VerdictJudge:
        config = self._deployment.judge.verdict
        function = reward_function(config)
        if function is not None:
            return _RewardJudge(function)
        return await verdict_judge(config, self._engine, self._engine.tokenizer, folder.name)

    def _hint_source(self) -> HintSource:
        if JudgementNeed.HINTS not in self._method.needs:
            return NoHints()
        return hint_source(self._deployment.judge.hints, self._engine, self._engine.tokenizer)

    async def _make_teacher(self) -> Teacher | None:
        """``None`` when the serving policy teaches: its replicas are asked then."""
        config = self._deployment.judge.teacher
        if config.version == "current":
            return None
        if config.model == "judge":
            engine, name = self._engine, "judge"
        elif config.version == 0:
            engine, name = await self._frozen_policy(), "policy:0"
        else:
            engine, name = await self._published(config.version), f"policy:{config.version}"
        tokenizer = engine.tokenizer
        if engine is self._engine and engine is not self._start_policy:
            # The judge's model is another one; the prompts are rendered as the policy's were.
            tokenizer = AutoTokenizer.from_pretrained(self._policy_folder)
            check_same_tokenizer(tokenizer, engine.tokenizer)
        renderer = ChatRenderer(tokenizer, engine.capabilities.context_length)
        return Teacher(engine, renderer, top_k=self._method.teacher_top_k, label=config.label, name=name)

    async def _published(self, number: int) -> Engine:
        coordinator = Coordinator(self._deployment.name)
        version: PolicyVersion | None = await coordinator.ask("version", number, timeout_s=120.0)
        if version is None:
            raise TeacherError(f"judge.teacher.version {number} was never published; use 0, current, or one that was")
        try:
            folder = await self._library.local(Path(version.snapshot), number, held=number)
        except SnapshotUnreachable as error:
            kept = sorted(int(f.name[1:7]) for f in (self._deployment.state_path / "snapshots").glob("v*"))
            raise TeacherError(
                f"judge.teacher.version {number} has no snapshot on disk ({error}); use 0, current, or one of {kept}"
            ) from error
        engine = await self._start(self._policy_folder, updates=True)
        await catch_up(engine, dataclasses.replace(version, snapshot=str(folder)), self._library)
        return engine


class _RewardJudge:
    """A reward function in the place of a judge."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def judge(self, request: JudgeRequest) -> Judgement:
        if request.turn is None:
            raise RewardError(f"turn {request.turn_id} is not in the ledger any more")
        return await self._function.judge(request.turn, request.evidence)
