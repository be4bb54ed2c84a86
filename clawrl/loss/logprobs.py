"""Token log-probabilities under a temperature, and which positions predict which tokens."""

import torch
from torch import Tensor


def predictors(start: int, end: int, device: torch.device | None = None) -> Tensor:
    """Positions whose logits predict tokens ``start:end`` of the same row: token ``t`` comes from ``t - 1``.

    Token 0 has no predictor, hence ``start >= 1``.
    """
    if start < 1:
        raise ValueError("the first token of a row has no predictor: a response needs at least one prompt token")
    return torch.arange(start - 1, end - 1, device=device)


def token_logps(logits_BTV: Tensor, targets_BT: Tensor, temperature_B: Tensor) -> Tensor:
    """``log_softmax(logits / T)`` at the targets -> ``logp_BT`` in float32 (float64 stays float64).

    ``logits_BTV[:, t]`` must be the row that predicts ``targets_BT[:, t]`` (see `predictors`).
    """
    # Gather and logsumexp give the same number as log_softmax without a second [B, T, V] tensor of probabilities.
    dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
    scaled_BTV = logits_BTV.to(dtype) / temperature_B.to(dtype)[:, None, None]
    chosen_BT = scaled_BTV.gather(-1, targets_BT[..., None]).squeeze(-1)
    return chosen_BT - torch.logsumexp(scaled_BTV, dim=-1)
