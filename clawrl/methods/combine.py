"""Reward and hint in one advantage: ``A_t = w_rl (R - baseline) + w_opd clip(log pi_T - log pi_old, -C, +C)``.

A turn without a reward (neutral, or the judge abstained) has only the second term, a turn without a teacher only the
first; a turn with neither is dropped. Of several hints the shortest teaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import Column, JudgementNeed, LossInputs, LossOutput
from clawrl.methods.plain import PlainMethod, RewardConfig
from clawrl.methods.policy_loss import finish, policy_gradient
from clawrl.methods.samples import make_sample, teacher_advantage, teacher_columns


class CombineConfig(RewardConfig):
    name: Literal["combine"] = Field(
        "combine", description="learns from verdicts, and from hints by the teacher's log-probs of the sampled tokens"
    )
    w_rl: float = Field(1.0, ge=0.0, description="weight of the reward's term")
    w_opd: float = Field(1.0, ge=0.0, description="weight of the teacher's term")
    advantage_clip: float = Field(1.0, ge=0.0, description="C in nats, of the teacher's term; 0 means no clip")


class Combine(PlainMethod):
    Config = CombineConfig
    name = "combine"
    needs = frozenset({JudgementNeed.VERDICT, JudgementNeed.HINTS, JudgementNeed.TEACHER})

    def __init__(self, config: CombineConfig) -> None:
        super().__init__(config, config)
        self._config = config

    def sample(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        return make_sample(turn, judgement, teacher, rewarded=True, taught=True)

    def columns(self, sample: Sample) -> Mapping[str, Column]:
        return teacher_columns(sample)

    def loss(self, inputs: LossInputs) -> LossOutput:
        config = self._config
        taught_BT = teacher_advantage(inputs, config.advantage_clip)
        advantage_BT = config.w_rl * inputs.advantage_B[:, None] + config.w_opd * taught_BT
        loss_BT, shares = policy_gradient(inputs, advantage_BT, config)
        return finish(inputs, loss_BT, shares | {"opd_advantage_abs": taught_BT.abs()}, config)


METHOD = Combine
