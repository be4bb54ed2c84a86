"""Which positions of a causal model's output predict which tokens."""

import torch
from torch import Tensor


def predictors(start: int, end: int, device: torch.device | None = None) -> Tensor:
    """Positions whose logits predict tokens ``start:end`` of the same row: token ``t`` comes from ``t - 1``.

    Token 0 has no predictor, hence ``start >= 1``.
    """
    if start < 1:
        raise ValueError("the first token of a row has no predictor: a response needs at least one prompt token")
    return torch.arange(start - 1, end - 1, device=device)
