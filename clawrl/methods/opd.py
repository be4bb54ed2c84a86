"""On-policy distillation from a teacher that was told the hint, token by token.

``A_t = clip(log pi_T(a_t | s + hint, a_<t) - log pi_old(a_t | s, a_<t), -C, +C)``, PPO-clipped like a reward. Of
several hints the shortest teaches. Rewards are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import Column, JudgementNeed, LossInputs, LossOutput
from clawrl.methods.plain import PlainMethod
from clawrl.methods.policy_loss import PolicyLossConfig, finish, policy_gradient
from clawrl.methods.samples import make_sample, teacher_advantage, teacher_columns


class OPDConfig(PolicyLossConfig):
    name: Literal["opd"] = Field(
        "opd", description="learns from hints alone, by the teacher's log-probs of the sampled tokens"
    )
    advantage_clip: float = Field(1.0, ge=0.0, description="C in nats; 0 means no clip")


class OPD(PlainMethod):
    Config = OPDConfig
    name = "opd"
    needs = frozenset({JudgementNeed.HINTS, JudgementNeed.TEACHER})

    def __init__(self, config: OPDConfig) -> None:
        super().__init__(config, None)
        self._config = config

    def sample(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        return make_sample(turn, judgement, teacher, rewarded=False, taught=True)

    def columns(self, sample: Sample) -> Mapping[str, Column]:
        return teacher_columns(sample)

    def loss(self, inputs: LossInputs) -> LossOutput:
        advantage_BT = teacher_advantage(inputs, self._config.advantage_clip)
        loss_BT, shares = policy_gradient(inputs, advantage_BT, self._config)
        return finish(inputs, loss_BT, shares | {"opd_advantage_abs": advantage_BT.abs()}, self._config)


METHOD = OPD
