"""The clipped surrogate objective of PPO (Schulman et al. 2017, eq. 7), with separate lower and upper clips."""

import torch
from torch import Tensor

from clawrl.loss.ratio import log_ratio


def clipped_policy_loss(
    logp_BT: Tensor, old_logp_BT: Tensor, advantage_BT: Tensor, eps_clip: float, eps_clip_high: float
) -> tuple[Tensor, Tensor]:
    """``max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)`` with ``r = exp(logp - old)`` -> ``(loss_BT, clipped_BT)``.

    ``advantage_BT`` may broadcast (``[B, 1]``). ``clipped_BT`` is true where the clipped term is the larger one,
    which is where the gradient is zero.
    """
    ratio_BT = torch.exp(log_ratio(logp_BT, old_logp_BT.detach()))
    plain_BT = -ratio_BT * advantage_BT
    limited_BT = -torch.clamp(ratio_BT, 1.0 - eps_clip, 1.0 + eps_clip_high) * advantage_BT
    return torch.maximum(plain_BT, limited_BT), (limited_BT > plain_BT).detach()
