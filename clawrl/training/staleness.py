"""How old a sample may be when it is trained, counted in optimizer steps of the policy.

A sample's *lag* is how many optimizer steps the policy has taken since it sampled the sample's oldest token, at the
moment when the last pass over the batch reads it. 0 is on-policy. One batch is up to ``updates_per_batch`` optimizer
steps, and the passes before the last one count as well: a sample with ``behind`` batches between has the lag
``(behind + 1) * updates_per_batch - 1``.

Whether a sample is admitted is decided when it is lent, since only then it is known which step will consume it. What is
beyond ``max_steps`` is dropped, or admitted up to ``correct_up_to`` and left to the importance weights that the methods
give to every sampled token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig


class StalenessConfig(StrictConfig):
    max_steps: int = Field(8, ge=0, description="optimizer steps that a turn may lag behind; 0 is on-policy")
    beyond: Literal["drop", "correct"] = Field("drop", description="correct: by truncated importance sampling")
    correct_up_to: int | None = Field(None, ge=1, description="with correct: what lags still more is dropped")

    @model_validator(mode="after")
    def _the_limits_belong_together(self) -> StalenessConfig:
        if self.beyond == "drop" and self.correct_up_to is not None:
            raise ValueError("correct_up_to belongs to beyond: correct; remove it, or set beyond to correct")
        if self.beyond == "correct" and self.correct_up_to is None:
            raise ValueError(
                "beyond: correct needs correct_up_to, the lag from which turns are dropped all the same: weights that "
                "are truncated everywhere correct nothing; four times max_steps is a beginning"
            )
        if self.correct_up_to is not None and self.correct_up_to <= self.max_steps:
            raise ValueError(f"correct_up_to {self.correct_up_to} must be above max_steps {self.max_steps}")
        return self

    @property
    def limit(self) -> int:
        """No sample with a larger lag is trained."""
        return self.max_steps if self.correct_up_to is None else self.correct_up_to


def lag(behind: int, updates_per_batch: int) -> int:
    """The lag of a sample with ``behind`` batches between the policy that sampled it and the batch that it is in."""
    return (behind + 1) * updates_per_batch - 1


def most_behind(limit: int, updates_per_batch: int) -> int:
    """The largest ``behind`` whose lag is within ``limit``; negative if even a fresh sample's is not."""
    return (limit + 1) // updates_per_batch - 1


def lag_figures(lags: Sequence[int], config: StalenessConfig) -> dict[str, Any]:
    """Metrics of one step: ``lag`` counts samples by their lag, ``lag_corrected`` those beyond ``max_steps``."""
    if not lags:
        return {}
    return {
        "lag": {str(value): count for value, count in sorted(Counter(lags).items())},
        "lag_mean": sum(lags) / len(lags),
        "lag_max": max(lags),
        "lag_corrected": sum(value > config.max_steps for value in lags),
    }


def lag_histogram(steps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The samples of many steps by their lag, from the metrics of each; the smallest lag first."""
    total: Counter[int] = Counter()
    for metrics in steps:
        total.update({int(value): count for value, count in (metrics.get("lag") or {}).items()})
    return {str(value): count for value, count in sorted(total.items())}
