"""Truncated importance sampling: corrects for tokens drawn by an engine whose policy differs from the trainer's."""

import torch
from torch import Tensor

from clawrl.loss.ratio import log_ratio


def truncated_importance_weight(
    old_logp_BT: Tensor, behaviour_logp_BT: Tensor, tis_clip: float
) -> tuple[Tensor, Tensor]:
    """``min(exp(old - behaviour), tis_clip)`` -> ``(weight_BT, clipped_BT)``, both without gradient.

    ``old`` is the trainer's log-prob before the update, never the current one: the weight is a constant of the step.
    """
    ratio_BT = torch.exp(log_ratio(old_logp_BT.detach(), behaviour_logp_BT.detach()))
    return ratio_BT.clamp(max=tis_clip), ratio_BT > tis_clip
