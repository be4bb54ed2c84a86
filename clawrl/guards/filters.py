"""Whether a turn that may train is worth training on, from the turn alone.

In: a finished turn. Out: a reason and its details, or ``None``. Whether a turn may train at all (permission, side turn,
aborted, empty, greedy, filtered, too long) is decided before, in ``serving.trainability``; duplicates and stale turns
are found by the ledger, which alone knows the other turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from clawrl.guards.config import FiltersConfig
from clawrl.guards.repetition import zlib_ratio
from clawrl.messages import DropReason, FinishReason, Turn

TurnFilter = Callable[[Turn], str | None]
"""A user's filter: why the turn must not train, or ``None`` to let it pass."""


class Against(NamedTuple):
    """``detail`` is figures, or the name of the filter that refused; its ``words`` may quote the conversation."""

    reason: DropReason
    detail: str = ""
    words: str = ""


def filter_reason(turn: Turn, config: FiltersConfig, extra: Sequence[TurnFilter] = ()) -> Against | None:
    """The first reason that applies, cheapest test first, with a text for the operator.

    ``extra`` are the functions that ``config.extra`` names. One that raises, or returns something else than a text or
    ``None``, refuses the turn and says so: whoever asked for a filter wants nothing trained that it did not let pass,
    and no served turn may be lost over it.
    """
    tokens, words = len(turn.response_ids), len(turn.response_text.split())
    if tokens < config.min_response_tokens:
        return Against(DropReason.TOO_SHORT, f"{tokens} tokens, min_response_tokens is {config.min_response_tokens}")
    if words < config.min_response_words:
        return Against(DropReason.TOO_SHORT, f"{words} words, min_response_words is {config.min_response_words}")
    if config.truncated == "drop" and turn.finish_reason is FinishReason.LENGTH:
        return Against(DropReason.TRUNCATED, f"cut off after {tokens} tokens")
    ratio = zlib_ratio(turn.response_text)
    if ratio < config.min_zlib_ratio:
        return Against(DropReason.REPETITIVE, f"compresses to {ratio:.2f}, min_zlib_ratio is {config.min_zlib_ratio}")
    for one in extra:
        if said := _refusal(one, turn):
            name = f"{one.__module__}:{one.__qualname__}" if hasattr(one, "__qualname__") else repr(one)
            return Against(DropReason.REFUSED_BY_FILTER, name, said)
    return None


def _refusal(one: TurnFilter, turn: Turn) -> str | None:
    try:
        answer = one(turn)
    except Exception as error:
        return f"failed with {type(error).__name__}: {error}"
    if answer is None:
        return None
    if not isinstance(answer, str):
        return f"returned a {type(answer).__name__}, not a text or None"
    return answer or "no reason given"
