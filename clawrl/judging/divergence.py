"""How far a policy has moved from a frozen model, estimated from tokens that the policy sampled."""

from __future__ import annotations

import numpy as np

_MAX_LOG_RATIO = 20.0


def k3(frozen_logps: np.ndarray, behaviour_logps: np.ndarray) -> float:
    """Estimate of KL(policy || frozen) in nats a token, from float[R] each; never negative.

    The mean of ``exp(r) - 1 - r`` with ``r = frozen - behaviour``, limited to +-20 so that one token cannot overflow.
    """
    ratio = frozen_logps.astype(np.float64) - behaviour_logps.astype(np.float64)
    ratio = np.clip(ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return float(np.mean(np.expm1(ratio) - ratio))
