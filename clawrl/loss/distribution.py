"""The policy's distribution over the vocabulary at every position, in log-probs at the sampling temperature."""

import torch
from torch import Tensor


class TokenDistribution:
    """``softmax(logits / temperature)``; ``logits_BTV[:, t]`` predicts token column ``t`` (see `predictors`).

    float32 at least (float64 stays float64). Everything read off it carries the gradient of the logits. A logit may be
    ``-inf``: its token has log-prob ``-inf`` and probability 0. At least one logit per position must be finite.
    """

    def __init__(self, logits_BTV: Tensor, temperature_B: Tensor) -> None:
        # Gather and logsumexp give the numbers of log_softmax without a second [B, T, V] tensor, `entropy` apart.
        dtype = torch.promote_types(logits_BTV.dtype, torch.float32)
        self._scaled_BTV = logits_BTV.to(dtype) / temperature_B.to(dtype)[:, None, None]
        self._logsumexp_BT = torch.logsumexp(self._scaled_BTV, dim=-1)

    def logp(self, targets_BT: Tensor) -> Tensor:
        """``logp_BT`` of one token per position."""
        return self.logps(targets_BT[..., None])[..., 0]

    def logps(self, ids_BTK: Tensor) -> Tensor:
        """``logp_BTK`` of K tokens per position."""
        return self._scaled_BTV.gather(-1, ids_BTK) - self._logsumexp_BT[..., None]

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """``(ids_BTk, logp_BTk)`` of the k most likely tokens, best first."""
        best = self._scaled_BTV.topk(k, dim=-1)
        return best.indices, best.values - self._logsumexp_BT[..., None]

    def entropy(self) -> Tensor:
        """``H_BT`` in nats, over the whole vocabulary; a token of probability 0 adds nothing."""
        logp_BTV = self._scaled_BTV - self._logsumexp_BT[..., None]
        # 0 * -inf is NaN, in the value and in the gradient.
        finite_BTV = logp_BTV.masked_fill(torch.isneginf(logp_BTV), 0.0)
        return -(torch.exp(logp_BTV) * finite_BTV).sum(-1)
