"""Labels with which a random model can be a judge: it must like pleased replies better than displeased ones.

Which of two words random weights prefer after a prompt is chance, and another prompt draws again. So it is not left to
chance here: of a few words the first pair is taken with which the judge can start.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import cache
from pathlib import Path

from clawrl.judging.config import JudgingConfig
from clawrl.judging.errors import JudgeError
from clawrl.judging.probability import ProbabilityJudge
from tests.engine_tools import TINY, running_engine

_WORDS = (" good", " bad", " plants", " rain", " short", " sentence", " list", " word")


@cache
def labels_for(model: Path) -> tuple[str, str]:
    """For the model in this folder, good first. Where there is none, nobody will ask it."""
    if not (model / "config.json").exists():
        return JudgingConfig().labels
    return asyncio.run(_labels_for(model))


async def _labels_for(model: Path) -> tuple[str, str]:
    async with running_engine(model, TINY.model_copy(update={"context_length": 1024})) as engine:
        for labels in itertools.permutations(_WORDS, 2):
            try:
                await ProbabilityJudge(engine, engine.tokenizer, JudgingConfig(labels=labels), "random").calibrate()
            except JudgeError:
                continue
            return labels
    raise AssertionError(f"{model} cannot be a judge with any two of {_WORDS}")
