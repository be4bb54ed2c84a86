"""Liger's fused kernels for what `clawrl.loss.vocabulary` does in plain torch: one token's log-prob per row.

An extra (``pip install clawrl[kernels]``), chosen by ``trainer.training.head_kernel``. On Hopper GPUs it is a kernel
that never writes logits to memory; elsewhere Liger has a fallback of its own. It takes one temperature per call, so
that rows are grouped by theirs, and no bias; with a vocabulary in shards these must be of equal size and on GPUs.
"""

import torch
from torch import Tensor

from clawrl.loss import HeadRows, VocabularyHead


def check_liger() -> None:
    """Raise `ValueError` where it is not installed."""
    try:
        import liger_kernel.ops.fused_linear_scaled_cross_entropy  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"trainer.training.head_kernel: liger cannot be imported ({error}); install clawrl[kernels], or set torch"
        ) from None


class LigerRows(HeadRows):
    """`HeadRows` whose one log-prob per row, which is all that most losses ask for, comes from Liger."""

    def logps(self, ids_NK: Tensor) -> Tensor:
        if ids_NK.shape[1] != 1:
            return super().logps(ids_NK)
        return liger_logp(self._hidden_ND, self._head, self._temperature_N, ids_NK[:, 0])[:, None]

    def logps_and_entropy(self, ids_NK: Tensor) -> tuple[Tensor, Tensor]:
        # Liger tells no entropy: it takes a pass of its own over the head, without a backward pass.
        with torch.no_grad():
            entropy_N = self.entropy()
        return self.logps(ids_NK), entropy_N


def liger_logp(hidden_ND: Tensor, head: VocabularyHead, temperature_N: Tensor, ids_N: Tensor) -> Tensor:
    """``logp_N`` float32. Differentiable in hidden states and weight."""
    if head.bias_V is not None:
        raise ValueError("trainer.training.head_kernel: liger takes no bias, and this model's head has one; set torch")
    logp_N = hidden_ND.new_zeros(len(hidden_ND), dtype=torch.float32)
    for temperature in torch.unique(temperature_N).tolist():
        (rows,) = torch.nonzero(temperature_N == temperature, as_tuple=True)
        nll = _nll(hidden_ND[rows], head, temperature, ids_N[rows])
        logp_N = logp_N.index_put((rows,), -nll.float())
    return logp_N


def _nll(hidden_ND: Tensor, head: VocabularyHead, temperature: float, ids_N: Tensor) -> Tensor:
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import (
        LigerFusedLinearScaledCrossEntropyFunction,
        LigerFusedLinearScaledCrossEntropyTPFunction,
    )

    if head.group is None:
        nll = LigerFusedLinearScaledCrossEntropyFunction.apply(hidden_ND, head.weight_VD, ids_N, temperature)
    else:
        nll = LigerFusedLinearScaledCrossEntropyTPFunction.apply(
            hidden_ND, head.weight_VD, ids_N, head.group, temperature
        )
    assert isinstance(nll, Tensor)
    return nll
