"""From rewards to advantages: the reward minus what was to be expected.

``running``        the exponential average of batch means, as it was *before* this batch
``group``          GRPO: minus the mean of the answers to the same prompt; with ``normalize`` divided by their standard
                   deviation (Bessel's, plus 1e-6)
``leave_one_out``  RLOO: minus the mean of the *other* answers to the same prompt
``none``           the reward itself

Groups are found by group id, never by position, and only samples whose reward counts belong to one. A group with fewer
than two such members in the batch has nothing to compare: its member falls back to the running baseline. A group of
equal rewards teaches nothing and gets zeros. State: ``{"baseline": float}``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from clawrl.methods.base import MethodState
from clawrl.strict import StrictConfig

INITIAL_STATE: MethodState = {"baseline": 0.0}
_STD_EPSILON = 1e-6


class AdvantageConfig(StrictConfig):
    baseline: Literal["none", "running", "group", "leave_one_out"] = Field(
        "running",
        description="what is taken off a reward: nothing, a running mean, its group's mean, or the mean of the others",
    )
    baseline_decay: float = Field(0.9, ge=0.0, lt=1.0, description="share of the running mean that stays at each batch")
    group_size: int = Field(
        1, ge=1, description="answers per prompt that clients send under one group id; a batch must hold as many"
    )
    normalize: bool = Field(False, description="divide by the standard deviation of the group (GRPO)")

    @model_validator(mode="after")
    def _groups_can_be_compared(self) -> AdvantageConfig:
        if self.normalize and self.baseline != "group":
            raise ValueError(f"normalize belongs to baseline: group, not to {self.baseline}; set it to false")
        if self.baseline in ("group", "leave_one_out") and self.group_size < 2:
            raise ValueError(
                f"baseline: {self.baseline} compares the answers to one prompt, and with group_size 1 every advantage "
                "would be zero; set group_size to 2 or more, or baseline to running"
            )
        if self.baseline in ("none", "running") and self.group_size > 1:
            raise ValueError(
                f"group_size {self.group_size} belongs to baseline: group or leave_one_out, not to {self.baseline}; "
                "set it to 1, or baseline to one of those"
            )
        return self


def advantages(
    rewards_B: npt.NDArray[np.float64],
    rl_mask_B: npt.NDArray[np.bool_],
    groups_B: Sequence[str | None],
    state: MethodState,
    config: AdvantageConfig,
) -> tuple[npt.NDArray[np.float64], MethodState]:
    """One advantage per sample, zero where ``rl_mask_B`` is false, and the next state."""
    if config.baseline == "none":
        return np.where(rl_mask_B, rewards_B, 0.0), state
    baseline = state["baseline"]
    advantages_B = np.where(rl_mask_B, rewards_B - baseline, 0.0)
    if config.baseline != "running":
        for members in _groups(groups_B, rl_mask_B):
            advantages_B[members] = _compared(rewards_B[members], config)
    if not rl_mask_B.any():
        return advantages_B, state
    decay = config.baseline_decay
    return advantages_B, {"baseline": decay * baseline + (1.0 - decay) * float(rewards_B[rl_mask_B].mean())}


def _groups(groups_B: Sequence[str | None], rl_mask_B: npt.NDArray[np.bool_]) -> list[list[int]]:
    by_id: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups_B):
        if group is not None and rl_mask_B[index]:
            by_id[group].append(index)
    return [members for members in by_id.values() if len(members) > 1]


def _compared(rewards_N: npt.NDArray[np.float64], config: AdvantageConfig) -> npt.NDArray[np.float64]:
    # Sorted, so that the sums do not depend on the order of arrival.
    ordered_N = np.sort(rewards_N)
    centred_N: npt.NDArray[np.float64] = rewards_N - ordered_N.mean()
    if ordered_N[0] == ordered_N[-1]:
        return np.zeros_like(rewards_N)
    if config.baseline == "leave_one_out":
        centred_N *= len(rewards_N) / (len(rewards_N) - 1)
    elif config.normalize:
        centred_N /= ordered_N.std(ddof=1) + _STD_EPSILON
    return centred_N
