"""Distillation on whole next-token distributions, cut down to the few tokens that matter.

At each position the student's ``k`` most likely tokens (as they were before the first update) and the teacher's
``teacher_top_k >= k`` are known. Which tokens are compared is ``support``; which hint's teacher is listened to is
``hint_selection``, by how much its top k overlap the student's. Two objectives:

``tail_kl``          reverse KL(student || teacher) over the support and one bin for everything else
``difference_clip``  every supported token has the advantage ``w clip(log pi_T - log pi_old, -C, +C)``, ``w`` being the
                     student's own probabilities renormalised over the support, and is PPO-clipped by itself

A supported token that the teacher did not list is not guessed at. For ``tail_kl`` it joins the tail bin. For
``difference_clip`` its clipped difference is often certain, since the teacher's smallest listed log-prob bounds it;
where it is not, the token counts for nothing and its weight is reported as ``opd_unknown_weight``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from clawrl.messages import Sample, TeacherTargets
from clawrl.methods.advantages import AdvantageConfig
from clawrl.methods.base import Column, LossInputs
from clawrl.methods.plain import PlainMethod
from clawrl.methods.policy_loss import LossConfig
from clawrl.strict import StrictConfig

if TYPE_CHECKING:
    from torch import Tensor

    from clawrl.loss import TokenDistribution


class TopKConfig(StrictConfig):
    k: int = Field(4, ge=1, description="tokens per position that are compared")
    teacher_top_k: int = Field(32, ge=1, description="tokens per position that the teacher lists")
    support: Literal["teacher", "student", "overlap"] = Field(
        "student", description="whose k tokens are compared: the teacher's, the student's, or those of both"
    )
    hint_selection: Literal["sequence_optimal", "token_optimal", "shortest"] = Field(
        "sequence_optimal",
        description="which of several hints teaches: the best over the whole answer, the best at each token, the "
        "shortest",
    )
    difference_clip: float = Field(1.0, ge=0.0, description="C in nats, for objective difference_clip; 0 means no clip")

    @model_validator(mode="after")
    def _teacher_lists_enough(self) -> TopKConfig:
        if self.teacher_top_k < self.k:
            raise ValueError(f"teacher_top_k {self.teacher_top_k} must be at least k {self.k}")
        return self


def fitting(teacher: TeacherTargets | None, config: TopKConfig) -> TeacherTargets | None:
    """Targets that were made for other settings count as a teacher that failed."""
    fits = teacher is not None and teacher.topk_ids.shape[-1] == config.teacher_top_k
    return teacher if fits else None


def refuse_unread(config: TopKConfig, objective: str, unread: Sequence[str]) -> None:
    """Raise for settings that somebody changed and that ``tail_kl`` does not read."""
    fields = type(config).model_fields
    changed = [name for name in unread if getattr(config, name) != fields[name].default]
    if objective == "tail_kl" and changed:
        raise ValueError(f"{changed[0]} is not read by objective tail_kl; remove it, or use difference_clip")


def topk_columns(sample: Sample, config: TopKConfig) -> dict[str, Column]:
    """``teacher_ids`` int64[R, H, K], ``teacher_logp`` float32[R, H, K], ``hint_mask`` bool[R, H]."""
    if sample.teacher is None:
        empty = (len(sample.response_ids), 1, config.teacher_top_k)
        return {
            "teacher_ids": np.zeros(empty, dtype=np.int64),
            "teacher_logp": np.zeros(empty, dtype=np.float32),
            "hint_mask": np.zeros(empty[:2], dtype=np.bool_),
        }
    ids_RHK = sample.teacher.topk_ids.swapaxes(0, 1)
    return {
        "teacher_ids": ids_RHK.astype(np.int64),
        "teacher_logp": sample.teacher.topk_logps.swapaxes(0, 1),
        "hint_mask": np.ones(ids_RHK.shape[:2], dtype=np.bool_),
    }


def topk_frozen(policy: TokenDistribution, columns: Mapping[str, Tensor], config: TopKConfig) -> dict[str, Tensor]:
    """The support ``ids`` [B, T, S] with its mask, the student's and the teacher's log-probs there, what is known.

    ``overlap`` is the chosen teacher's overlap with the student, in tokens, and ``hint`` the chosen hint.
    """
    from clawrl.loss import build_support, choose_hint, lookup, overlap_count, take_hint

    hint_mask_BTH = columns["hint_mask"]
    taught_BT = hint_mask_BTH.any(-1)
    student_ids_BTk, _ = policy.topk(config.k)
    overlap_BTH = overlap_count(student_ids_BTk, columns["teacher_ids"][..., : config.k])
    choice_BT = choose_hint(overlap_BTH, taught_BT, hint_mask_BTH.any(1), config.hint_selection)
    teacher_ids_BTK = take_hint(columns["teacher_ids"], choice_BT)
    teacher_logp_BTK = take_hint(columns["teacher_logp"], choice_BT)
    ids_BTS, support_BTS = build_support(config.support, student_ids_BTk, teacher_ids_BTK[..., : config.k])
    teacher_logp_BTS, found_BTS = lookup(ids_BTS, teacher_ids_BTK, teacher_logp_BTK)
    return {
        "ids": ids_BTS,
        "support": support_BTS & taught_BT[..., None],
        "found": found_BTS,
        "old_logp": policy.logps(ids_BTS),
        "teacher_logp": teacher_logp_BTS,
        "overlap": take_hint(overlap_BTH, choice_BT) * taught_BT,
        "hint": choice_BT,
    }


def topk_loss(
    inputs: LossInputs,
    objective: Literal["tail_kl", "difference_clip"],
    config: TopKConfig,
    loss_config: LossConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """``(loss_BT, shares)`` of the teacher's term alone; zero where there is no teacher."""
    from clawrl.loss import difference_clip_loss, known_ids, tail_kl

    frozen = inputs.frozen
    logp_BTS = inputs.policy.logps(frozen["ids"])
    shares = {"opd_overlap": frozen["overlap"], "opd_hint": frozen["hint"], "opd_support": frozen["support"].sum(-1)}
    if objective == "tail_kl":
        kl_BT = tail_kl(logp_BTS, frozen["teacher_logp"], frozen["support"] & frozen["found"])
        return kl_BT, shares | {"opd_kl": kl_BT}
    known_BTS = known_ids(frozen["found"], frozen["teacher_logp"], frozen["old_logp"], config.difference_clip)
    out = difference_clip_loss(
        logp_BTS,
        frozen["old_logp"],
        frozen["teacher_logp"],
        frozen["support"],
        known_BTS,
        clip=config.difference_clip,
        eps_clip=loss_config.eps_clip,
        eps_clip_high=loss_config.eps_clip_high,
    )
    return out.loss_BT, shares | {
        "opd_clip_fraction": out.clipped_BT,
        "opd_unknown_weight": out.unknown_weight_BT,
        "opd_gap": out.gap_BT,
    }


class TopKMethod(PlainMethod):
    """What the methods that compare whole distributions do alike."""

    def __init__(self, topk: TopKConfig, loss_config: LossConfig, advantage_config: AdvantageConfig | None) -> None:
        super().__init__(loss_config, advantage_config)
        self._topk = topk
        self.teacher_top_k = topk.teacher_top_k
        self.teacher_hints = 1 if topk.hint_selection == "shortest" else None

    def columns(self, sample: Sample) -> Mapping[str, Column]:
        return topk_columns(sample, self._topk)

    def frozen(self, policy: TokenDistribution, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return topk_frozen(policy, columns, self._topk)
