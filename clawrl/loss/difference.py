"""Policy-gradient distillation on a few tokens per position: the clipped log-prob difference is their advantage.

Ratios and log-probs stay those of the whole vocabulary: within a subset that is normalised anew, a policy that moves
all of its mass elsewhere would look unchanged. The subset only filters and weighs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clawrl.loss.distill import token_advantage
from clawrl.loss.policy import clipped_policy_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceClip:
    """Per token; all but ``loss_BT`` are for the record and carry no gradient.

    ``clipped_BT`` is the weight of the ids where the ratio's clip binds, ``unknown_weight_BT`` the weight of the ids
    that the teacher says too little about, ``gap_BT`` the weighted size of the clipped differences in nats. The weights
    of a token sum to 1, or to 0 where it has no support.
    """

    loss_BT: Tensor
    clipped_BT: Tensor
    unknown_weight_BT: Tensor
    gap_BT: Tensor


def difference_clip_loss(
    logp_BTS: Tensor,
    old_logp_BTS: Tensor,
    teacher_logp_BTS: Tensor,
    support_BTS: Tensor,
    known_BTS: Tensor,
    *,
    clip: float,
    eps_clip: float,
    eps_clip_high: float,
) -> DifferenceClip:
    """Sum over the supported, known ids of ``max(-A r, -clip(r, 1 - eps, 1 + eps_high) A)`` with ``A = w D``.

    ``r = exp(logp - old)``; ``D = teacher - old`` limited to ``±clip`` (``clip <= 0``: no limit); ``w`` is the softmax
    of ``old`` over the support. ``w`` and ``D`` are constants: the gradient goes through ``logp`` only. An id that is
    supported but not known keeps its weight and contributes nothing. A row without support gives exactly 0 and no
    gradient; what stands outside the support may be anything. An id whose ``old`` is -inf has no weight.
    """
    support_BTS = support_BTS & ~torch.isneginf(old_logp_BTS)
    weight_BTS = torch.softmax(torch.where(support_BTS, old_logp_BTS.detach(), -torch.inf), dim=-1)
    # A row without support has no softmax, only NaN.
    weight_BTS = torch.where(support_BTS, weight_BTS, 0.0)
    used_BTS = support_BTS & known_BTS
    logp_BTS = torch.where(used_BTS, logp_BTS, 0.0)
    old_logp_BTS = torch.where(used_BTS, old_logp_BTS, 0.0)
    difference_BTS = token_advantage(torch.where(used_BTS, teacher_logp_BTS, 0.0), old_logp_BTS, clip)
    loss_BTS, clipped_BTS = clipped_policy_loss(
        logp_BTS, old_logp_BTS, weight_BTS * difference_BTS, eps_clip, eps_clip_high
    )
    return DifferenceClip(
        loss_BT=loss_BTS.sum(-1),
        clipped_BT=(weight_BTS * clipped_BTS).sum(-1),
        unknown_weight_BT=(weight_BTS * ~used_BTS).sum(-1),
        gap_BT=(weight_BTS * difference_BTS.abs()).sum(-1),
    )


def known_ids(found_BTS: Tensor, bound_logp_BTS: Tensor, old_logp_BTS: Tensor, clip: float) -> Tensor:
    """``known_BTS``: the ids whose clipped difference is certain.

    Those are the ids that the teacher lists, and the ids for which the upper bound of `lookup` already lies ``clip`` or
    more below ``old``: the clipped difference is then ``-clip`` whatever the true value, and the bound gives just that.
    """
    if clip <= 0:
        return found_BTS
    return found_BTS | (bound_logp_BTS - old_logp_BTS <= -clip)
