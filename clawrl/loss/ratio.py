"""Log-ratios that are safe to exponentiate."""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Nats. exp(20) is 4.9e8: far beyond any clip, far below float32 overflow, so ``inf * 0`` cannot arise."""


def log_ratio(logp_BT: Tensor, other_logp_BT: Tensor) -> Tensor:
    """``log(p / q)`` per token, limited to ``±MAX_LOG_RATIO``; beyond the limit the gradient is zero."""
    return torch.clamp(logp_BT - other_logp_BT, -MAX_LOG_RATIO, MAX_LOG_RATIO)
