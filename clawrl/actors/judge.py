"""The judge: a frozen model that says what a user's reaction means. It never trains and keeps no state."""

from __future__ import annotations

import asyncio
import logging

from clawrl.config import Deployment
from clawrl.engine.transformers import TransformersEngine
from clawrl.judging.probability import ProbabilityJudge
from clawrl.messages import Judgement, JudgeRequest
from clawrl.models import resolve

log = logging.getLogger(__name__)


class Judge:
    async def __init__(self, deployment: Deployment) -> None:  # type: ignore[misc]  # Serve awaits it
        args = deployment.judge
        folder = await asyncio.to_thread(resolve, deployment.judge_model)
        engine = TransformersEngine(folder, args.engine, generates=False)
        await engine.start()
        self._judge = ProbabilityJudge(engine, engine.tokenizer, args.verdict, name=f"probability:{folder.name}")
        log.info("judge calibrated: %.3f nats on neutral replies", await self._judge.calibrate())

    async def judge(self, request: JudgeRequest) -> Judgement:
        return await self._judge.judge(request)

    async def ready(self) -> bool:
        return True
