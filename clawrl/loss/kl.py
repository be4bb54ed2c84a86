"""KL(policy || reference) from sampled tokens (Schulman 2020, "Approximating KL divergence"): to report, to descend.

A good estimate of the value need not have a good gradient. In expectation over tokens that the policy samples, the
gradient of k1 itself is zero, that of k2 is the gradient of KL(policy || reference), that of k3 the gradient of the
other direction, KL(reference || policy).
"""

from typing import Literal

import torch
from torch import Tensor

from clawrl.loss.ratio import log_ratio


def kl_estimate(logp_BT: Tensor, ref_logp_BT: Tensor, kind: Literal["k1", "k2", "k3"]) -> Tensor:
    """With ``d = logp - ref``: k1 is ``d``, k2 ``d^2 / 2``, k3 ``exp(-d) - 1 + d`` -> ``kl_BT``, nats per token.

    The value: k1 is unbiased and of either sign; k2 and k3 are never negative. The gradient goes through ``logp`` only.
    ``d`` is limited to ±20: a token that the policy has all but given up costs k3 at most 4.9e8 and pulls no further.
    """
    d_BT = log_ratio(logp_BT, ref_logp_BT.detach())
    match kind:
        case "k1":
            return d_BT
        case "k2":
            return d_BT.square() / 2
        case "k3":
            # expm1 keeps the difference exact near d = 0, where exp(-d) - 1 + d would round to noise of either sign.
            return torch.expm1(-d_BT) + d_BT
        case _:
            raise ValueError(f"kind {kind!r} is no KL estimator: use k1, k2 or k3")


def kl_penalty(logp_BT: Tensor, old_logp_BT: Tensor, ref_logp_BT: Tensor, kind: Literal["k1", "k2", "k3"]) -> Tensor:
    """A term whose gradient pulls the policy towards the reference -> ``penalty_BT``.

    k2 and k3 as they are. k1 as the score function sees it: ``r d`` with ``r = exp(logp - old)`` and ``d`` held
    constant, whose expected gradient is that of KL(policy || reference).
    """
    if kind != "k1":
        return kl_estimate(logp_BT, ref_logp_BT, kind)
    return torch.exp(log_ratio(logp_BT, old_logp_BT.detach())) * kl_estimate(logp_BT, ref_logp_BT, "k1").detach()
