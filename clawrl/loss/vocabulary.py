"""Log-probs read off hidden states, so that the logits of all rows never exist at once.

``logits = hidden W^T + bias`` is computed for a few rows at a time, and again in the backward pass: what stays in
memory is one row's log-sum-exp. The rows that are worked on together are those whose float32 logits fit
``block_bytes``; at the peak three such blocks exist, four where the entropy is asked for with its gradient. The
numbers are those of ``log_softmax(logits / T)`` in float32 (float64 stays).

The vocabulary may be cut into shards of consecutive tokens, one a rank of ``head.group``. All ranks then call these
functions with the same hidden states and ids, and get the same results; gradients of ``hidden`` come back whole, those
of ``weight`` as the rank's own.

Rows ``N``, hidden width ``D``, this rank's vocabulary ``V``, ids per row ``K``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyHead:
    """``weight_VD`` and ``bias_V`` of the tokens ``first:first + V``; ``group`` holds the other shards, if any."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    group: dist.ProcessGroup | None = None
    first: int = 0
    block_bytes: int = 256 * 2**20

    @property
    def rows_at_once(self) -> int:
        return max(1, self.block_bytes // (4 * max(1, len(self.weight_VD))))


def head_logps(hidden_ND: Tensor, head: VocabularyHead, temperature_N: Tensor, ids_NK: Tensor) -> Tensor:
    """``logp_NK`` of the given tokens, over the whole vocabulary. Differentiable in hidden states, weight and bias."""
    return head_logps_and_entropy(hidden_ND, head, temperature_N, ids_NK)[0]


def head_logps_and_entropy(
    hidden_ND: Tensor, head: VocabularyHead, temperature_N: Tensor, ids_NK: Tensor
) -> tuple[Tensor, Tensor]:
    """``logp_NK`` as `head_logps` gives it and ``H_N`` in nats, of the same logits. The entropy carries no gradient."""
    logp_NK, entropy_N = _Logps.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight_VD, head.bias_V, temperature_N, ids_NK, head
    )
    return logp_NK, entropy_N


def head_entropy(hidden_ND: Tensor, head: VocabularyHead, temperature_N: Tensor) -> Tensor:
    """``H_N`` in nats. Differentiable in hidden states, weight and bias."""
    entropy_N: Tensor = _Entropy.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight_VD, head.bias_V, temperature_N, head
    )
    return entropy_N


@torch.no_grad()
def head_topk(hidden_ND: Tensor, head: VocabularyHead, k: int) -> Tensor:
    """``ids_Nk`` of the k most likely tokens of the whole vocabulary, best first."""
    logits, ids = [hidden_ND.new_empty(0, k, dtype=_wide(hidden_ND))], [_no_ids(hidden_ND, k)]
    for _, z_cV in _blocks(hidden_ND, head, None):
        best = z_cV.topk(min(k, z_cV.shape[1]), dim=-1)
        logits.append(_padded(best.values, k, -torch.inf))
        ids.append(_padded(best.indices + head.first, k, 0))
    own_logits_Nk, own_ids_Nk = torch.cat(logits), torch.cat(ids)
    if head.group is None:
        return own_ids_Nk
    ranks = dist.get_world_size(head.group)
    all_logits, all_ids = ([torch.empty_like(t) for _ in range(ranks)] for t in (own_logits_Nk, own_ids_Nk))
    dist.all_gather(all_logits, own_logits_Nk, group=head.group)
    dist.all_gather(all_ids, own_ids_Nk, group=head.group)
    best = torch.cat(all_logits, -1).topk(k, dim=-1)
    return torch.cat(all_ids, -1).gather(-1, best.indices)


class _Logps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        temperature_N: Tensor,
        ids_NK: Tensor,
        head: VocabularyHead,
    ) -> tuple[Tensor, Tensor]:
        picked_NK = hidden_ND.new_empty(ids_NK.shape, dtype=_wide(hidden_ND))
        moments = _Moments(hidden_ND)
        for rows, z_cV in _blocks(hidden_ND, head, temperature_N):
            own, local = _own(ids_NK[rows], head, z_cV.shape[1])
            picked_NK[rows] = torch.where(own, z_cV.gather(-1, local), 0.0)
            moments.take(rows, z_cV)
        lse_N, mean_N = moments.over_ranks(head)
        if head.group is not None:
            dist.all_reduce(picked_NK, group=head.group)
        entropy_N = lse_N - mean_N
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, temperature_N, ids_NK, lse_N)
        ctx.head = head
        ctx.mark_non_differentiable(entropy_N)
        return picked_NK - lse_N[:, None], entropy_N

    @staticmethod
    def backward(ctx: Any, grad_NK: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, temperature_N, ids_NK, lse_N = ctx.saved_tensors
        sums = _Gradients(hidden_ND, weight_VD, bias_V, ctx.needs_input_grad, ctx.head)
        for rows, z_cV in _blocks(hidden_ND, ctx.head, temperature_N, weight_VD, bias_V):
            # d logp_k / d z_v = [v = id_k] - p_v
            p_cV = z_cV.sub_(lse_N[rows, None]).exp_()
            grad_cV = p_cV.mul_(-grad_NK[rows].sum(-1, keepdim=True))
            own, local = _own(ids_NK[rows], ctx.head, grad_cV.shape[1])
            grad_cV.scatter_add_(-1, local, torch.where(own, grad_NK[rows], 0.0))
            sums.add(rows, grad_cV.div_(temperature_N[rows, None]))
        return (*sums.totals(), None, None, None)


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        temperature_N: Tensor,
        head: VocabularyHead,
    ) -> Tensor:
        moments = _Moments(hidden_ND)
        for rows, z_cV in _blocks(hidden_ND, head, temperature_N):
            moments.take(rows, z_cV)
        lse_N, mean_N = moments.over_ranks(head)
        entropy_N = lse_N - mean_N
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, temperature_N, lse_N, entropy_N)
        ctx.head = head
        return entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, temperature_N, lse_N, entropy_N = ctx.saved_tensors
        sums = _Gradients(hidden_ND, weight_VD, bias_V, ctx.needs_input_grad, ctx.head)
        for rows, z_cV in _blocks(hidden_ND, ctx.head, temperature_N, weight_VD, bias_V):
            # dH / d z_v = -p_v (log p_v + H)
            logp_cV = z_cV.sub_(lse_N[rows, None])
            p_cV = torch.exp(logp_cV)
            grad_cV = logp_cV.add_(entropy_N[rows, None]).mul_(p_cV).mul_(-grad_N[rows, None])
            sums.add(rows, grad_cV.div_(temperature_N[rows, None]))
        return (*sums.totals(), None, None)


class _Moments:
    """Log-sum-exp of each row's logits and their mean under its softmax, one block after the other."""

    def __init__(self, hidden_ND: Tensor) -> None:
        wide = _wide(hidden_ND)
        self._highest_N, self._total_N, self._weighted_N = (
            hidden_ND.new_empty(len(hidden_ND), dtype=wide) for _ in range(3)
        )

    def take(self, rows: slice, z_cV: Tensor) -> None:
        """The block is written over."""
        if z_cV.shape[1] == 0:
            # A shard may have no tokens at all.
            self._highest_N[rows], self._total_N[rows], self._weighted_N[rows] = -torch.inf, 0.0, 0.0
            return
        # Relative to the highest logit, so that no power overflows; a row of nothing but -inf adds nothing.
        highest_c = z_cV.amax(-1)
        power_cV = torch.exp(z_cV - highest_c.clamp(min=torch.finfo(z_cV.dtype).min)[:, None])
        self._highest_N[rows], self._total_N[rows] = highest_c, power_cV.sum(-1)
        # 0 * -inf is NaN: what has no probability adds nothing.
        self._weighted_N[rows] = power_cV.mul_(z_cV.masked_fill_(torch.isneginf(z_cV), 0.0)).sum(-1)

    def over_ranks(self, head: VocabularyHead) -> tuple[Tensor, Tensor]:
        """``(lse_N, mean_N)`` over the whole vocabulary."""
        highest_N, total_N, weighted_N = self._highest_N, self._total_N, self._weighted_N
        if head.group is not None:
            highest_N = highest_N.clone()
            dist.all_reduce(highest_N, op=dist.ReduceOp.MAX, group=head.group)
            sums_2N = torch.stack([total_N, weighted_N]) * torch.exp(self._highest_N - highest_N)
            dist.all_reduce(sums_2N, group=head.group)
            total_N, weighted_N = sums_2N
        return highest_N + torch.log(total_N), weighted_N / total_N


class _Gradients:
    """What the blocks' gradients of the logits add up to. The weight's sum is kept in float32 at least."""

    def __init__(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        needed: tuple[bool, ...],
        head: VocabularyHead,
    ) -> None:
        self._hidden_ND, self._weight_VD, self._head = hidden_ND, weight_VD, head
        self._bias_type = None if bias_V is None else bias_V.dtype
        self._of_hidden = torch.empty_like(hidden_ND) if needed[0] else None
        wide = _wide(hidden_ND)
        self._of_weight = torch.zeros_like(weight_VD, dtype=wide) if needed[1] else None
        self._of_bias = torch.zeros_like(bias_V, dtype=wide) if bias_V is not None and needed[2] else None

    def add(self, rows: slice, grad_cV: Tensor) -> None:
        narrow_cV = grad_cV.to(self._weight_VD.dtype)
        if self._of_hidden is not None:
            self._of_hidden[rows] = narrow_cV @ self._weight_VD
        if self._of_weight is not None:
            hidden_cD = self._hidden_ND[rows]
            if narrow_cV.dtype == self._of_weight.dtype:
                self._of_weight.addmm_(narrow_cV.T, hidden_cD)
            else:
                self._of_weight += narrow_cV.T @ hidden_cD
        if self._of_bias is not None:
            self._of_bias += grad_cV.sum(0)

    def totals(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self._of_hidden is not None and self._head.group is not None:
            dist.all_reduce(self._of_hidden, group=self._head.group)
        return (
            self._of_hidden,
            None if self._of_weight is None else self._of_weight.to(self._weight_VD.dtype),
            None if self._of_bias is None else self._of_bias.to(self._bias_type),
        )


def _blocks(
    hidden_ND: Tensor,
    head: VocabularyHead,
    temperature_N: Tensor | None,
    weight_VD: Tensor | None = None,
    bias_V: Tensor | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """``(rows, z_cV)``: this rank's logits of a few rows, over the temperature, in a buffer of the reader's own."""
    weight_VD = head.weight_VD if weight_VD is None else weight_VD
    bias_V = head.bias_V if bias_V is None else bias_V
    for start in range(0, len(hidden_ND), head.rows_at_once):
        rows = slice(start, start + head.rows_at_once)
        z_cV = torch.nn.functional.linear(hidden_ND[rows], weight_VD, bias_V).to(_wide(hidden_ND))
        yield rows, z_cV if temperature_N is None else z_cV.div_(temperature_N[rows, None])


def _own(ids_cK: Tensor, head: VocabularyHead, tokens: int) -> tuple[Tensor, Tensor]:
    """Which of the ids are this shard's, and where in it; 0 for those of others."""
    local = ids_cK - head.first
    own = (local >= 0) & (local < tokens)
    return own, torch.where(own, local, 0)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _no_ids(like: Tensor, k: int) -> Tensor:
    return torch.empty(0, k, dtype=torch.long, device=like.device)


def _padded(values_ck: Tensor, k: int, fill: float) -> Tensor:
    """A shard may have fewer than k tokens."""
    return torch.nn.functional.pad(values_ck, (0, k - values_ck.shape[1]), value=fill)
