"""Settings of the filters and the alarms.

The defaults are meant for chat and agent answers of any length from one short sentence upwards; a degenerate policy
(empty or one-word answers, loops, word salad) is outside them by a wide margin. Tokens count the whole response, with
its end token.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig


class FiltersConfig(StrictConfig):
    """Which served turns are good enough to learn from."""

    min_response_tokens: int = Field(2, ge=1, description="shorter responses are dropped as too_short")
    min_response_words: int = Field(1, ge=0, description="responses with fewer words are dropped as too_short")
    truncated: Literal["keep", "drop"] = Field("keep", description="responses that ran into their token limit")
    duplicates: Literal["keep", "drop"] = Field("drop", description="the same answer to the same request once more")
    min_zlib_ratio: float = Field(
        0.15, ge=0.0, lt=1.0, description="responses that compress below this share are dropped as repetitive; 0 is off"
    )
    extra: tuple[str, ...] = Field(
        (), description="package.module:function, called with a Turn; what it returns is the reason to refuse, or None"
    )


class AlarmConfig(StrictConfig):
    """When learning is paused because the recent answers look degenerate. Bounds are on means over turns."""

    enabled: bool = Field(True, description="false: the figures are taken and shown, and nothing is paused")
    window: int = Field(48, ge=2, description="recent main turns that the figures are taken over, at most")
    min_turns: int = Field(16, ge=2, description="no alarm before this many recent turns")
    short_tokens: int = Field(4, ge=0, description="an answer of at most this many tokens is short")
    max_share_short: float = Field(0.5, ge=0.0, le=1.0, description="alarm above this share of short answers")
    min_mean_tokens: float = Field(4.0, ge=0.0, description="alarm below this mean length in tokens")
    max_mean_tokens_ratio: float | None = Field(
        None, gt=1.0, description="mean length as a multiple of the first turns'; null is off"
    )
    repetitive_below: float = Field(0.35, ge=0.0, lt=1.0, description="zlib ratio below which an answer is repetitive")
    max_repetitive_share: float = Field(0.3, ge=0.0, le=1.0, description="alarm above this share of repetitive answers")
    max_kl: float = Field(2.0, gt=0.0, description="nats per token from the starting model")
    max_fluency_drop: float = Field(1.5, gt=0.0, description="nats per token below the first turns' fluency")
    min_lift_share: float = Field(
        0.25, ge=0.0, le=1.0, description="share of the first turns' on-topic lift that must be left"
    )
    probe_every: int = Field(2, ge=0, description="one main turn in N is shown to the frozen model; 0 is never")

    @model_validator(mode="after")
    def _window_holds_enough(self) -> AlarmConfig:
        if self.min_turns > self.window:
            raise ValueError(f"window {self.window} cannot hold min_turns {self.min_turns}; raise window")
        return self


class GuardsConfig(StrictConfig):
    filters: FiltersConfig = Field(
        FiltersConfig(), description="turns that are not good enough to learn from are dropped"
    )
    alarms: AlarmConfig = Field(
        AlarmConfig(),
        description="learning stops and the last healthy version comes back when recent answers look degenerate",
    )
