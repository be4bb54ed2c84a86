"""Ask a judge until it answers or the attempts run out. A failed judgement becomes an abstention, never a number."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from clawrl.judging.config import JudgingConfig
from clawrl.messages import Judgement, JudgeRequest

log = logging.getLogger(__name__)


async def judge_or_abstain(
    ask: Callable[[JudgeRequest], Awaitable[Judgement]], request: JudgeRequest, config: JudgingConfig
) -> Judgement:
    """The judge's answer, or an abstention that says what went wrong at the last attempt."""
    began = time.monotonic()
    problem = ""
    for attempt in range(config.attempts):
        if attempt:
            await asyncio.sleep(config.backoff_s * 2 ** (attempt - 1))
        try:
            async with asyncio.timeout(config.timeout_s):
                return await ask(request)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            log.warning("judging turn %s failed (attempt %d): %s", request.turn_id, attempt + 1, problem[:300])
    return Judgement(
        turn_id=request.turn_id,
        verdict=None,
        score=None,
        votes=(),
        judge="none",
        seconds=time.monotonic() - began,
        detail=problem[:500],
    )
