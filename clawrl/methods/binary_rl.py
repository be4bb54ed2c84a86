"""Binary RL: the judge's verdict on a turn, or a person's score, broadcast over its response.

A neutral verdict and an abstention train nothing. The advantage is the reward minus a baseline
(`clawrl.methods.advantages`); the loss is PPO-clipped, weighted by truncated importance sampling, with optional KL to
the frozen start and entropy.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import JudgementNeed, LossInputs, LossOutput
from clawrl.methods.plain import PlainMethod, RewardConfig
from clawrl.methods.policy_loss import finish, policy_gradient
from clawrl.methods.samples import make_sample


class BinaryRLConfig(RewardConfig):
    name: Literal["binary_rl"] = Field("binary_rl", description="learns from verdicts alone")


class BinaryRL(PlainMethod):
    Config = BinaryRLConfig
    name = "binary_rl"
    needs = frozenset({JudgementNeed.VERDICT})

    def __init__(self, config: BinaryRLConfig) -> None:
        super().__init__(config, config)
        self._config = config

    def sample(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        return make_sample(turn, judgement, teacher, rewarded=True, taught=False)

    def loss(self, inputs: LossInputs) -> LossOutput:
        loss_BT, shares = policy_gradient(inputs, inputs.advantage_B[:, None], self._config)
        return finish(inputs, loss_BT, shares, self._config)


METHOD = BinaryRL
