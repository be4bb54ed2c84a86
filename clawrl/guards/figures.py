"""Means of vitals over turns, and the bounds that they must keep.

A mean carries its standard error, so that a bound is not said to be broken by chance. A turn with a figure that is not
finite counts in ``share_non_finite`` and in no other mean: one bad number never hides or makes up a trend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clawrl.guards.config import AlarmConfig
from clawrl.messages import Vitals

_LEAST_LIFT = 0.05
_NON_FINITE = "share_non_finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One turn's vitals, flat. The last three are ``None`` where the frozen model was not asked."""

    version: int
    tokens: int
    repetition: float
    fluency: float | None = None
    on_topic_lift: float | None = None
    kl: float | None = None
    finite: bool = True


def seen(vitals: Vitals) -> Seen:
    model = vitals.model
    figures = [vitals.repetition] + ([model.fluency, model.on_topic_lift, model.kl] if model else [])
    if not all(math.isfinite(figure) for figure in figures):
        return Seen(version=vitals.version, tokens=vitals.response_tokens, repetition=1.0, finite=False)
    return Seen(
        version=vitals.version,
        tokens=vitals.response_tokens,
        repetition=vitals.repetition,
        fluency=model.fluency if model else None,
        on_topic_lift=model.on_topic_lift if model else None,
        kl=model.kl if model else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """``error`` is the standard error; infinite for a single value, of which nothing is known but itself."""

    value: float
    error: float
    count: int


def means(turns: Sequence[Seen], config: AlarmConfig) -> dict[str, Mean]:
    """By figure; shares are means of 0 and 1. A figure that fewer turns carry than are needed to say it is absent."""
    finite = [turn for turn in turns if turn.finite]
    values: dict[str, Sequence[float]] = {
        _NON_FINITE: [float(not turn.finite) for turn in turns],
        "share_short": [float(turn.tokens <= config.short_tokens) for turn in finite],
        "mean_tokens": [float(turn.tokens) for turn in finite],
        "share_repetitive": [float(turn.repetition < config.repetitive_below) for turn in finite],
    }
    found = {name: _mean(list_) for name, list_ in values.items() if list_}
    for name in ("fluency", "on_topic_lift", "kl"):
        measured = [value for turn in finite if (value := getattr(turn, name)) is not None]
        # Half of the turns that an alarm needs may be measured by default, half of those may lack a second question.
        if len(measured) >= max(2, config.min_turns // 4):
            found[name] = _mean(measured)
    return found


def _mean(values: Sequence[float]) -> Mean:
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Mean(value=mean, error=math.inf, count=1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Mean(value=mean, error=math.sqrt(variance / count), count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """``figure`` must stay below ``limit``, or above it where ``floor``. ``remedy`` names the setting."""

    figure: str
    what: str
    limit: float
    remedy: str
    floor: bool = False
    limit_error: float = 0.0

    def broken(self, mean: Mean, errors: float) -> bool:
        """Beyond the limit by more than ``errors`` standard errors."""
        excess = self.limit - mean.value if self.floor else mean.value - self.limit
        if excess <= 0.0 or errors == 0.0:
            return excess > 0.0
        return excess > errors * math.hypot(mean.error, self.limit_error)


def bounds(config: AlarmConfig, baseline: Mapping[str, Mean]) -> list[Bound]:
    """What is watched, gravest first, given the means of the first turns.

    A bound that the first turns break themselves is left out: training did not cause that, and an agent that has always
    answered in one word is not ill. Figures that are not finite are nobody's habit and always watched.
    """
    short = f"share of answers of at most {config.short_tokens} tokens"
    found = [
        Bound(
            figure=_NON_FINITE,
            what="share of turns with a figure that is not finite",
            limit=0.0,
            remedy="look for broken weights",
        ),
        Bound(figure="share_short", what=short, limit=config.max_share_short, remedy=_raise("max_share_short")),
        Bound(
            figure="mean_tokens",
            what="mean length in tokens",
            limit=config.min_mean_tokens,
            remedy=_lower("min_mean_tokens"),
            floor=True,
        ),
        Bound(
            figure="share_repetitive",
            what="share of repetitive answers",
            limit=config.max_repetitive_share,
            remedy=_raise("max_repetitive_share"),
        ),
        Bound(
            figure="kl",
            what="divergence from the starting model in nats per token",
            limit=config.max_kl,
            remedy=_raise("max_kl"),
        ),
    ]
    if config.max_mean_tokens_ratio is not None and (tokens := baseline.get("mean_tokens")):
        found.append(
            Bound(
                figure="mean_tokens",
                what="mean length in tokens",
                limit=config.max_mean_tokens_ratio * tokens.value,
                limit_error=config.max_mean_tokens_ratio * tokens.error,
                remedy=_raise("max_mean_tokens_ratio"),
            )
        )
    if fluency := baseline.get("fluency"):
        found.append(
            Bound(
                figure="fluency",
                what="fluency under the starting model in nats per token",
                limit=fluency.value - config.max_fluency_drop,
                limit_error=fluency.error,
                remedy=_raise("max_fluency_drop"),
                floor=True,
            )
        )
    lift = baseline.get("on_topic_lift")
    # Where answers never depended on the question there is no topic to lose.
    if lift and lift.value > max(_LEAST_LIFT, 2.0 * lift.error):
        found.append(
            Bound(
                figure="on_topic_lift",
                what="on-topic lift in nats per token",
                limit=config.min_lift_share * lift.value,
                limit_error=config.min_lift_share * lift.error,
                remedy=_lower("min_lift_share"),
                floor=True,
            )
        )
    return [
        bound
        for bound in found
        if bound.figure == _NON_FINITE or bound.figure not in baseline or not bound.broken(baseline[bound.figure], 0.0)
    ]


def broken(found: Mapping[str, Mean], watched: Sequence[Bound], *, errors: float = 2.0) -> list[tuple[Bound, Mean]]:
    """Bounds that are broken by more than ``errors`` standard errors."""
    return [
        (bound, found[bound.figure])
        for bound in watched
        if bound.figure in found and bound.broken(found[bound.figure], errors)
    ]


def _raise(field: str) -> str:
    return f"raise guards.alarms.{field} if this is wanted"


def _lower(field: str) -> str:
    return f"lower guards.alarms.{field} if this is wanted"
