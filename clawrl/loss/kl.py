"""The k3 estimator of KL(policy || reference) from sampled tokens (Schulman 2020, "Approximating KL divergence")."""

import torch
from torch import Tensor

from clawrl.loss.ratio import log_ratio


def k3_kl(logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``exp(-d) - 1 + d`` with ``d = logp - ref`` -> nats per token, never negative.

    ``d`` is limited to ±20, so a token that the policy has all but given up costs at most 4.9e8 and pulls no further.
    """
    d_BT = log_ratio(logp_BT, ref_logp_BT.detach())
    # expm1 keeps the difference exact near d = 0, where exp(-d) - 1 + d would round to noise of either sign.
    return torch.expm1(-d_BT) + d_BT
