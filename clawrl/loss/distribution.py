"""The policy's distribution over the vocabulary at every token, in log-probs at the sampling temperature.

`TokenDistribution` is what losses see: one entry per token column ``[b, t]``. Behind it stand *rows*, one per entry
that counts, which know how to find a log-prob: `LogitRows` from logits that are all there, the plain reference, and
`HeadRows` from hidden states, for when they would not fit.
"""

from typing import Protocol

import torch
from torch import Tensor

from clawrl.loss.vocabulary import VocabularyHead, head_entropy, head_logps, head_logps_and_entropy, head_topk


class Rows(Protocol):
    """N distributions. What is read off them carries a gradient, but for an entropy that comes with log-probs."""

    def logps(self, ids_NK: Tensor) -> Tensor: ...

    def logps_and_entropy(self, ids_NK: Tensor) -> tuple[Tensor, Tensor]: ...

    def topk(self, k: int) -> tuple[Tensor, Tensor]: ...

    def entropy(self) -> Tensor: ...


class LogitRows:
    """``softmax(logits_NV / temperature_N)``, float32 at least (float64 stays float64).

    A logit may be ``-inf``: its token has log-prob ``-inf`` and probability 0. At least one a row must be finite.
    """

    def __init__(self, logits_NV: Tensor, temperature_N: Tensor) -> None:
        # Gather and logsumexp give the numbers of log_softmax without a second [N, V] tensor, `entropy` apart.
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        self._scaled_NV = logits_NV.to(dtype) / temperature_N.to(dtype)[:, None]
        self._logsumexp_N = torch.logsumexp(self._scaled_NV, dim=-1)

    def logps(self, ids_NK: Tensor) -> Tensor:
        return self._scaled_NV.gather(-1, ids_NK) - self._logsumexp_N[:, None]

    def logps_and_entropy(self, ids_NK: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            entropy_N = self.entropy()
        return self.logps(ids_NK), entropy_N

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        best = self._scaled_NV.topk(k, dim=-1)
        return best.indices, best.values - self._logsumexp_N[:, None]

    def entropy(self) -> Tensor:
        logp_NV = self._scaled_NV - self._logsumexp_N[:, None]
        # 0 * -inf is NaN, in the value and in the gradient.
        finite_NV = logp_NV.masked_fill(torch.isneginf(logp_NV), 0.0)
        return -(torch.exp(logp_NV) * finite_NV).sum(-1)


class HeadRows:
    """The same from ``hidden_ND`` and the vocabulary projection, a block of rows at a time; see `VocabularyHead`."""

    def __init__(self, hidden_ND: Tensor, head: VocabularyHead, temperature_N: Tensor) -> None:
        self._hidden_ND, self._head, self._temperature_N = hidden_ND, head, temperature_N

    def logps(self, ids_NK: Tensor) -> Tensor:
        return head_logps(self._hidden_ND, self._head, self._temperature_N, ids_NK)

    def logps_and_entropy(self, ids_NK: Tensor) -> tuple[Tensor, Tensor]:
        return head_logps_and_entropy(self._hidden_ND, self._head, self._temperature_N, ids_NK)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        ids_Nk = head_topk(self._hidden_ND, self._head, k)
        return ids_Nk, self.logps(ids_Nk)

    def entropy(self) -> Tensor:
        return head_entropy(self._hidden_ND, self._head, self._temperature_N)


class TokenDistribution:
    """``rows`` stand, in order, at the entries where ``where_BT`` is true.

    Everywhere else a log-prob and an entropy are 0 and the most likely tokens are ``0:k``, without a gradient.
    """

    def __init__(self, rows: Rows, where_BT: Tensor) -> None:
        self._rows, self._where_BT = rows, where_BT

    @classmethod
    def of_logits(cls, logits_BTV: Tensor, temperature_B: Tensor) -> "TokenDistribution":
        """``logits_BTV[:, t]`` predicts token column ``t``."""
        columns = logits_BTV.shape[1]
        rows = LogitRows(logits_BTV.flatten(0, 1), temperature_B.repeat_interleave(columns))
        return cls(rows, torch.ones(logits_BTV.shape[:2], dtype=torch.bool, device=logits_BTV.device))

    def logp(self, targets_BT: Tensor) -> Tensor:
        """``logp_BT`` of one token per entry."""
        return self.logps(targets_BT[..., None])[..., 0]

    def logp_and_entropy(self, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        """``logp`` and, without a gradient and at next to no cost, ``H_BT`` in nats, over the whole vocabulary."""
        logp_N1, entropy_N = self._rows.logps_and_entropy(targets_BT[..., None][self._where_BT])
        return self._spread(logp_N1)[..., 0], self._spread(entropy_N)

    def logps(self, ids_BTK: Tensor) -> Tensor:
        """``logp_BTK`` of K tokens per entry."""
        return self._spread(self._rows.logps(ids_BTK[self._where_BT]))

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """``(ids_BTk, logp_BTk)`` of the k most likely tokens, best first."""
        ids_Nk, logp_Nk = self._rows.topk(k)
        ids_BTk = torch.arange(k, device=ids_Nk.device).repeat(*self._where_BT.shape, 1)
        ids_BTk[self._where_BT] = ids_Nk
        return ids_BTk, self._spread(logp_Nk)

    def entropy(self) -> Tensor:
        """``H_BT`` in nats, over the whole vocabulary; a token of probability 0 adds nothing."""
        return self._spread(self._rows.entropy())

    def _spread(self, values: Tensor) -> Tensor:
        spread = values.new_zeros(*self._where_BT.shape, *values.shape[1:])
        return spread.masked_scatter(self._where_BT.reshape(*self._where_BT.shape, *[1] * (values.ndim - 1)), values)
