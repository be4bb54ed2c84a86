"""From per-token values to one number, with denominators that belong to the whole batch.

Both means return this micro-batch's share: the shares of all micro-batches add up to the mean over the batch, so
gradients do not depend on how the batch was split, padded or ordered. A micro-batch without a trainable token gives
a zero that still has a graph. Masked values are selected away, not multiplied, so that they may be anything finite
or not; their gradient is zero.
"""

import torch
from torch import Tensor


def token_mean(value_BT: Tensor, mask_BT: Tensor, batch_tokens: int) -> Tensor:
    """Every token weighs the same. ``batch_tokens`` counts the unmasked tokens of the whole batch."""
    return _masked(value_BT, mask_BT).sum() / max(batch_tokens, 1)


def sample_mean(value_BT: Tensor, mask_BT: Tensor, batch_samples: int) -> Tensor:
    """Every sample weighs the same: the mean of per-sample token means.

    ``batch_samples`` counts the samples of the whole batch that have an unmasked token. A sample lies in one
    micro-batch entirely, so its own token count is known here.
    """
    tokens_B = mask_BT.sum(-1).clamp(min=1)
    return (_masked(value_BT, mask_BT).sum(-1) / tokens_B).sum() / max(batch_samples, 1)


def _masked(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, value_BT, torch.zeros_like(value_BT))
