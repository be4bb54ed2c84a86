"""Learning from a teacher's log-probs: a per-token advantage, or the whole distribution on a few bins.

The teacher is data: no gradient reaches it.
"""

import torch
from torch import Tensor

LOG_ZERO = -1e4
"""Nats. Stands for log 0: exp of it is exactly 0 in every float type, and sums and products with it stay finite."""

LARGEST_LOG_MASS = -1e-7
"""Nats. A support never holds quite everything, so that what is left has a logarithm."""


def token_advantage(teacher_logp_BT: Tensor, old_logp_BT: Tensor, clip: float) -> Tensor:
    """``teacher - old`` limited to ``±clip`` -> ``A_BT`` without gradient; ``clip <= 0`` sets no limit.

    Positive where the teacher likes the token better than the policy did. Any shape will do.
    """
    difference_BT = (teacher_logp_BT - old_logp_BT).detach()
    return difference_BT.clamp(-clip, clip) if clip > 0 else difference_BT


def tail_kl(logp_BTS: Tensor, teacher_logp_BTS: Tensor, support_BTS: Tensor) -> Tensor:
    """KL(student || teacher) over the supported tokens and one bin for all the others -> ``kl_BT``, nats.

    Log-probs are over the whole vocabulary; a row's supported tokens are distinct. The tail bin holds what the
    supported tokens leave of each side's mass, 1e-7 at least. The gradient goes through the student only. What stands
    outside the support may be anything; a row without support gives exactly 0 and no gradient. Log-probs below -1e4,
    -inf among them, count as -1e4, so that the result is finite.
    """
    student_BTS = _with_tail(logp_BTS, support_BTS)
    teacher_BTS = _with_tail(teacher_logp_BTS.detach(), support_BTS)
    return (torch.exp(student_BTS) * (student_BTS - teacher_BTS)).sum(-1)


def _with_tail(logp_BTS: Tensor, support_BTS: Tensor) -> Tensor:
    """Log-masses of the S bins, `LOG_ZERO` where unsupported, and of the tail behind them -> ``[B, T, S + 1]``."""
    bins_BTS = torch.where(support_BTS, logp_BTS, LOG_ZERO).clamp(min=LOG_ZERO)
    inside_BT1 = torch.logsumexp(bins_BTS, dim=-1, keepdim=True).clamp(max=LARGEST_LOG_MASS)
    return torch.cat([bins_BTS, torch.log(-torch.expm1(inside_BT1))], dim=-1)
