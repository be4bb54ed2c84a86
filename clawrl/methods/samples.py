"""From a judged turn to a sample, and what a token-level teacher adds to it: what several methods do alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import Column, LossInputs

if TYPE_CHECKING:
    from torch import Tensor


def make_sample(
    turn: Turn, judgement: Judgement, teacher: TeacherTargets | None, *, rewarded: bool, taught: bool
) -> Sample | DropReason:
    """The turn as a sample of a method that learns from its reward, its teacher, or both.

    A neutral or absent verdict is no reward; a teacher that was not asked or failed teaches nothing. What is left with
    neither is dropped with the reason that concerns this method.

    Only answers to the same request compare, whatever else a client sends under the same group id: the sample's group
    names both.
    """
    if judgement.turn_id != turn.turn_id:
        raise ValueError(f"judgement of turn {judgement.turn_id} was paired with turn {turn.turn_id}")
    reward = judgement.reward or 0.0
    has_reward = rewarded and reward != 0.0
    if not has_reward and not (taught and teacher is not None):
        return _why_nothing(judgement, rewarded=rewarded)
    arrival = turn.arrival
    return Sample(
        turn_id=turn.turn_id,
        prompt_ids=turn.prompt_ids,
        response_ids=turn.response_ids,
        behaviour_logps=turn.response_logps,
        mask=np.ones(turn.response_ids.shape, dtype=np.bool_),
        spans=turn.spans,
        temperature=turn.sampling.temperature,
        reward=reward,
        rl_mask=has_reward,
        teacher=teacher if taught else None,
        group=None if arrival.group is None else f"{arrival.group}/{arrival.messages_hash}",
    )


def teacher_columns(sample: Sample) -> dict[str, Column]:
    """``teacher_logp`` float32[R] under the shortest hint, and ``opd_mask`` bool[R]: whether it counts."""
    tokens = len(sample.response_ids)
    logps: Any = np.zeros(tokens, dtype=np.float32) if sample.teacher is None else sample.teacher.logps[0]
    return {"teacher_logp": logps, "opd_mask": np.full(tokens, sample.opd_mask, dtype=np.bool_)}


def teacher_advantage(inputs: LossInputs, clip: float) -> Tensor:
    """``A_BT`` from the columns of `teacher_columns`: the clipped difference, zero where there is no teacher."""
    from clawrl.loss import token_advantage

    advantage_BT = token_advantage(inputs.columns["teacher_logp"], inputs.old_logp_BT, clip)
    return advantage_BT.where(inputs.columns["opd_mask"], 0.0)


def _why_nothing(judgement: Judgement, *, rewarded: bool) -> DropReason:
    if rewarded:
        return DropReason.JUDGE_ABSTAINED if judgement.reward is None else DropReason.NEUTRAL
    return DropReason.TEACHER_FAILED if judgement.hints else DropReason.NO_HINT
