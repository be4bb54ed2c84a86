"""Verdicts and hints from functions of one's own, checked at the border.

A reward function takes a `Turn` and its evidence and returns a `Judgement`; a hint function takes a `JudgeRequest` and
its `Judgement` and returns texts. Either may be ``async``; a plain one runs on a thread, so that it may take its time.

What is let through can be stored: numbers are Python's own, texts are texts. A judgement that could not be stored would
be asked for again for ever.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from clawrl.judging.config import JudgingConfig
from clawrl.judging.hints import HintSource
from clawrl.messages import Judgement, JudgeRequest, Message, Turn, Verdict
from clawrl.plugins import is_dotted, load


class RewardError(RuntimeError):
    """A function of the operator's returned what cannot be used."""


class RewardFunction:
    """``name`` is how the deployment file names it."""

    def __init__(self, function: Callable[[Turn, tuple[Message, ...]], Any], name: str) -> None:
        self._function = function
        self._name = name

    async def judge(self, turn: Turn, evidence: tuple[Message, ...]) -> Judgement:
        """Raises `RewardError`, and whatever the function raises. ``seconds`` that are none are measured."""
        began = time.monotonic()
        judgement = await _call(self._function, turn, evidence)
        took = time.monotonic() - began
        if not isinstance(judgement, Judgement):
            raise RewardError(f"{self._name} returned {_shown(judgement)}; return a clawrl.messages.Judgement")
        if judgement.turn_id != turn.turn_id:
            raise RewardError(f"{self._name} judged turn {judgement.turn_id!r} when asked about {turn.turn_id!r}")
        if judgement.verdict is not None and not isinstance(judgement.verdict, Verdict):
            raise RewardError(
                f"{self._name} gave the verdict {_shown(judgement.verdict)}; use Verdict.GOOD, NEUTRAL or BAD, or None "
                "to abstain"
            )
        feedback, score, seconds = (_number(v) for v in (judgement.feedback, judgement.score, judgement.seconds))
        if judgement.feedback is not None and (feedback is None or not -1.0 <= feedback <= 1.0):
            raise RewardError(
                f"{self._name} gave the feedback {_shown(judgement.feedback)}; use a number in -1..1, or None"
            )
        if judgement.score is not None and score is None:
            raise RewardError(f"{self._name} gave the score {_shown(judgement.score)}; use a finite number, or None")
        if not isinstance(judgement.detail, str):
            raise RewardError(f"{self._name} gave the detail {_shown(judgement.detail)}; use a text")
        return replace(
            judgement,
            feedback=feedback,
            score=score,
            votes=_checked_votes(judgement.votes, self._name),
            judge=_checked_name(judgement.judge, self._name),
            seconds=took if seconds is None or seconds < 0.0 else seconds,
            hints=_checked_texts(judgement.hints, self._name),
        )


class HintFunction:
    """A hint source made of a function; ``name`` is how the deployment file names it."""

    def __init__(self, function: Callable[[JudgeRequest, Judgement], Any], name: str) -> None:
        self._function = function
        self._name = name

    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        """Raises `RewardError`, and whatever the function raises."""
        return _checked_texts(await _call(self._function, case, judgement), self._name)


def reward_function(config: JudgingConfig) -> RewardFunction | None:
    """The operator's own verdict; None where the judge model gives it."""
    return RewardFunction(load(config.kind), config.kind) if is_dotted(config.kind) else None


def own_hint_source(found: Any, name: str) -> HintSource:
    """What a path named: a function ``(case, judgement) -> texts``, or a `HintSource` class without arguments."""
    source: HintSource = found() if isinstance(found, type) else HintFunction(found, name)
    return source


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    # A wrapper or a callable object hides that it makes a coroutine.
    return await result if inspect.isawaitable(result) else result


def _number(value: Any) -> float | None:
    """As a float of Python's, whoever made it; None for what is not finite or no number."""
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


def _checked_votes(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(vote, Integral) for vote in value):
        raise RewardError(f"{name} gave the votes {_shown(value)}; use a tuple of whole numbers, () for none")
    return tuple(int(vote) for vote in value)


def _checked_name(value: Any, name: str) -> str:
    # Stored as it is, where detail and hints are escaped, and a database takes no half of a surrogate pair.
    if not isinstance(value, str) or value != value.encode(errors="ignore").decode():
        raise RewardError(f"{name} gave the judge {_shown(value)}; use a text that names what judged")
    return value


def _checked_texts(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise RewardError(f"{name} gave the hints {_shown(value)}; use a tuple of texts, () for none")
    return tuple(value)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
