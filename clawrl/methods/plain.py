"""What a method is unless it says otherwise: no teacher, no memory of the old policy, the whole response trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from clawrl.messages import Sample
from clawrl.methods.advantages import INITIAL_STATE, AdvantageConfig, advantages
from clawrl.methods.base import Column, MethodState
from clawrl.methods.policy_loss import LossConfig, PolicyLossConfig

if TYPE_CHECKING:
    from torch import Tensor

    from clawrl.loss import TokenDistribution


class RewardConfig(PolicyLossConfig, AdvantageConfig):
    """Settings of a method that learns from rewards."""


class PlainMethod:
    """``advantage_config`` ``None``: rewards are not looked at."""

    teacher_top_k = 0
    teacher_hints: int | None = 1

    def __init__(self, loss_config: LossConfig, advantage_config: AdvantageConfig | None) -> None:
        self._loss_config = loss_config
        self._advantage_config = advantage_config

    @property
    def needs_reference(self) -> bool:
        return self._loss_config.kl_coef > 0.0

    def initial_state(self) -> MethodState:
        return INITIAL_STATE if self._advantage_config else {}

    def token_mask(self, sample: Sample) -> npt.NDArray[np.bool_]:
        return sample.mask if sample.rl_mask or sample.opd_mask else np.zeros_like(sample.mask)

    def columns(self, sample: Sample) -> Mapping[str, Column]:
        return {}

    def advantages(
        self,
        rewards_B: npt.NDArray[np.float64],
        rl_mask_B: npt.NDArray[np.bool_],
        groups_B: Sequence[str | None],
        state: MethodState,
    ) -> tuple[npt.NDArray[np.float64], MethodState]:
        if self._advantage_config is None:
            return np.zeros_like(rewards_B), state
        return advantages(rewards_B, rl_mask_B, groups_B, state, self._advantage_config)

    def frozen(self, policy: TokenDistribution, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {}
