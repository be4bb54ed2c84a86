"""One case in, one judgement out: the verdict first, then the hints.

What a person said of a turn on purpose settles the verdict, and no model is asked for another. Hints come from what
came after the answer; without evidence nobody is asked for any. A source of hints that fails or takes too long loses
its hints and never the verdict.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Protocol

from clawrl.judging.config import HintsConfig
from clawrl.judging.hints import HintSource, accept
from clawrl.judging.trouble import name_of, words_of
from clawrl.messages import Feedback, Judgement, JudgeRequest

log = logging.getLogger(__name__)


class VerdictJudge(Protocol):
    async def judge(self, request: JudgeRequest) -> Judgement: ...


class JudgePanel:
    """``verdict`` gives opinions, ``hints`` candidates; ``config`` says which of those are kept."""

    def __init__(self, verdict: VerdictJudge, hints: HintSource, config: HintsConfig) -> None:
        self._verdict = verdict
        self._hints = hints
        self._config = config

    async def judge(self, case: JudgeRequest) -> Judgement:
        """Raises what the verdict raises."""
        began = time.monotonic()
        judgement = _settled(case.feedback) if case.feedback else await self._verdict.judge(case)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                found = await self._hints.hints(case, judgement) if case.evidence else ()
            candidates = (*judgement.hints, *found)
            hints = accept(candidates, max_hints=self._config.max_hints, min_chars=self._config.min_chars)
            judgement = replace(judgement, hints=hints)
        except Exception as error:
            problem = f"no hints: {words_of(error)}"[:300]
            log.warning("turn %s: no hints: %s", case.turn_id, name_of(error))
            judgement = replace(judgement, detail=f"{judgement.detail} ({problem})".strip())
        return replace(judgement, seconds=time.monotonic() - began)


def _settled(feedback: Feedback) -> Judgement:
    return Judgement(
        turn_id=feedback.turn_id,
        verdict=feedback.verdict,
        score=None,
        votes=(),
        judge="feedback",
        seconds=0.0,
        feedback=feedback.score,
    )
