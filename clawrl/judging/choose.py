"""From settings to the judge model's verdict and the source of hints that they name."""

from __future__ import annotations

import logging

from transformers import PreTrainedTokenizerBase

from clawrl.engine.protocol import Engine
from clawrl.judging.config import HintsConfig, JudgingConfig
from clawrl.judging.hints import HintSource, NoHints
from clawrl.judging.panel import VerdictJudge
from clawrl.judging.probability import ProbabilityJudge
from clawrl.judging.quoting import QuotingHints
from clawrl.judging.rewards import own_hint_source
from clawrl.judging.written import WrittenJudge
from clawrl.judging.written_hints import WrittenHints
from clawrl.plugins import load

log = logging.getLogger(__name__)


def engine_must_generate(verdict: JudgingConfig, hints: HintsConfig, wants_hints: bool = True) -> bool:
    """Whether the judge's engine is asked for words, and not for log-probs alone.

    ``wants_hints``: whether anybody will ask for hints at all.
    """
    return verdict.kind == "written" or (wants_hints and hints.source == "written")


async def verdict_judge(
    config: JudgingConfig, engine: Engine, tokenizer: PreTrainedTokenizerBase, model_name: str
) -> VerdictJudge:
    """The judge model's verdict, calibrated. Not for a reward function, which judges turns and needs no model."""
    if config.kind == "written":
        return WrittenJudge(engine, tokenizer, config, f"written:{model_name}")
    judge = ProbabilityJudge(engine, tokenizer, config, f"probability:{model_name}")
    log.info("the judge's leaning is %.3f nats", await judge.calibrate())
    return judge


def hint_source(config: HintsConfig, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> HintSource:
    if config.source == "none":
        return NoHints()
    if config.source == "quoting":
        return QuotingHints()
    if config.source == "written":
        return WrittenHints(engine, tokenizer, config)
    return own_hint_source(load(config.source), config.source)
