"""Distillation of the teacher's next-token distributions (`clawrl.methods.topk`), rewards not looked at.

By default the reverse KL over the teacher's top k and a tail bin.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import JudgementNeed, LossInputs, LossOutput
from clawrl.methods.policy_loss import LossConfig, finish
from clawrl.methods.samples import make_sample
from clawrl.methods.topk import TopKConfig, TopKMethod, fitting, refuse_unread, topk_loss


class OPDTopKConfig(LossConfig, TopKConfig):
    name: Literal["opd_topk"] = Field(
        "opd_topk", description="learns from hints alone, by the teacher's k best tokens per position"
    )
    objective: Literal["tail_kl", "difference_clip"] = Field(
        "tail_kl", description="reverse KL over the k tokens and a tail, or clipped differences of log-probs"
    )
    support: Literal["teacher", "student", "overlap"] = Field(
        "teacher", description="whose k tokens are compared: the teacher's, the student's, or those of both"
    )

    @model_validator(mode="after")
    def _all_settings_count(self) -> OPDTopKConfig:
        refuse_unread(self, self.objective, ("eps_clip", "eps_clip_high", "difference_clip"))
        return self


class OPDTopK(TopKMethod):
    Config = OPDTopKConfig
    name = "opd_topk"
    needs = frozenset({JudgementNeed.HINTS, JudgementNeed.TEACHER})

    def __init__(self, config: OPDTopKConfig) -> None:
        super().__init__(config, config, None)
        self._config = config

    def sample(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        return make_sample(turn, judgement, fitting(teacher, self._config), rewarded=False, taught=True)

    def loss(self, inputs: LossInputs) -> LossOutput:
        loss_BT, shares = topk_loss(inputs, self._config.objective, self._config, self._config)
        return finish(inputs, loss_BT, shares, self._config)


METHOD = OPDTopK
