"""Try a deployment's judge on labelled cases, without starting the deployment: one process, one model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from clawrl.check import check_file
from clawrl.config import Deployment, read_deployment
from clawrl.engine.choose import make_engine
from clawrl.judging.calibration import CalibrationError, CalibrationReport, LabelledCase, calibrate, read_cases
from clawrl.judging.choose import engine_must_generate, verdict_judge
from clawrl.judging.rewards import reward_function
from clawrl.models import resolve


def calibrate_deployment(file: Path, cases: Path) -> CalibrationReport:
    """The report on the judge that ``file`` configures. Raises `CalibrationError`, `JudgeError`."""
    labelled = read_cases(cases)
    if problems := check_file(file).problems:
        raise CalibrationError(f"{file} is not valid: {problems[0]}")
    return asyncio.run(_calibrate(read_deployment(file), labelled))


async def _calibrate(deployment: Deployment, labelled: Sequence[LabelledCase]) -> CalibrationReport:
    config = deployment.judge.verdict
    if reward_function(config) is not None:
        raise CalibrationError(f"judge.verdict.kind {config.kind} judges whole turns, which a file of texts has not")
    folder = resolve(deployment.judge_model)
    engine = make_engine(
        folder,
        deployment.judge.engine,
        generates=engine_must_generate(config, deployment.judge.hints, wants_hints=False),
    )
    await engine.start()
    try:
        judge = await verdict_judge(config, engine, engine.tokenizer, folder.name)
        return await calibrate(judge, labelled, config.concurrency)
    finally:
        await engine.stop()
