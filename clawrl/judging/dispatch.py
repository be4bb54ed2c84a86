"""Ask a judge or a teacher until it answers or the attempts run out.

A failed judgement becomes an abstention and a failed teacher teaches nothing: neither ever becomes a number.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from clawrl.judging.config import JudgingConfig, TeacherConfig
from clawrl.judging.trouble import name_of, words_of
from clawrl.messages import Judgement, JudgeRequest, TeacherRequest, TeacherTargets

log = logging.getLogger(__name__)


async def judge_or_abstain(
    ask: Callable[[JudgeRequest], Awaitable[Judgement]],
    request: JudgeRequest,
    config: JudgingConfig,
    *,
    hints_timeout_s: float = 0.0,
) -> Judgement:
    """The judge's answer, or an abstention that says what went wrong at the last attempt.

    One call brings verdict and hints: it may take ``hints_timeout_s`` beyond what the verdict may, or hints that come
    slowly would cost the verdict.
    """
    began = time.monotonic()
    problem = ""
    for attempt in range(config.attempts):
        if attempt:
            await asyncio.sleep(config.backoff_s * 2 ** (attempt - 1))
        try:
            async with asyncio.timeout(config.timeout_s + hints_timeout_s):
                return await ask(request)
        except Exception as error:
            problem = words_of(error)
            log.warning("judging turn %s failed (attempt %d): %s", request.turn_id, attempt + 1, name_of(error))
    return Judgement(
        turn_id=request.turn_id,
        verdict=None,
        score=None,
        votes=(),
        judge="none",
        seconds=time.monotonic() - began,
        detail=problem[:500],
    )


async def teach_or_mask(
    ask: Callable[[TeacherRequest], Awaitable[TeacherTargets]], request: TeacherRequest, config: TeacherConfig
) -> TeacherTargets | None:
    """The teacher's targets, or ``None`` after the last attempt."""
    for attempt in range(config.attempts):
        try:
            async with asyncio.timeout(config.timeout_s):
                return await ask(request)
        except Exception as error:
            log.warning("teaching turn %s failed (attempt %d): %s", request.turn_id, attempt + 1, name_of(error))
    return None
