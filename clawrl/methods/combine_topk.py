"""Reward on the sampled tokens, distillation on the teacher's distributions: ``w_rl L_RL + w_opd L_OPD`` per token.

By default the teacher's term is the overlap-guided one: the hint whose teacher overlaps the student most, differences
clipped (`clawrl.methods.topk`). This is the main method of the paper on learning from next-state signals
(arXiv 2603.10165, second version).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import JudgementNeed, LossInputs, LossOutput
from clawrl.methods.plain import RewardConfig
from clawrl.methods.policy_loss import finish, policy_gradient
from clawrl.methods.samples import make_sample
from clawrl.methods.topk import TopKConfig, TopKMethod, fitting, refuse_unread, topk_loss


class CombineTopKConfig(RewardConfig, TopKConfig):
    name: Literal["combine_topk"] = Field(
        "combine_topk", description="learns from verdicts, and from hints by the teacher's k best tokens per position"
    )
    w_rl: float = Field(1.0, ge=0.0, description="weight of the reward's term")
    w_opd: float = Field(1.0, ge=0.0, description="weight of the teacher's term")
    objective: Literal["tail_kl", "difference_clip"] = Field(
        "difference_clip",
        description="of the teacher's term: reverse KL over the k tokens and a tail, or clipped differences of log- "
        "probs",
    )

    @model_validator(mode="after")
    def _all_settings_count(self) -> CombineTopKConfig:
        refuse_unread(self, self.objective, ("difference_clip",))
        return self


class CombineTopK(TopKMethod):
    Config = CombineTopKConfig
    name = "combine_topk"
    needs = frozenset({JudgementNeed.VERDICT, JudgementNeed.HINTS, JudgementNeed.TEACHER})

    def __init__(self, config: CombineTopKConfig) -> None:
        super().__init__(config, config, config)
        self._config = config

    def sample(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        return make_sample(turn, judgement, fitting(teacher, self._config), rewarded=True, taught=True)

    def loss(self, inputs: LossInputs) -> LossOutput:
        config = self._config
        reward_BT, rl_shares = policy_gradient(inputs, inputs.advantage_B[:, None], config)
        taught_BT, opd_shares = topk_loss(inputs, config.objective, config, config)
        return finish(inputs, config.w_rl * reward_BT + config.w_opd * taught_BT, rl_shares | opd_shares, config)


METHOD = CombineTopK
