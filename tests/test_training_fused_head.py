"""Liger's log-probs against the plain ones, where the extra is installed."""

import sys

import pytest
import torch

from clawrl.loss import HeadRows, VocabularyHead
from clawrl.training.fused_head import LigerRows, check_liger
from tests.test_loss_vocabulary import HIDDEN, IDS, WEIGHT, N


def test_the_fused_kernel_gives_the_plain_ones_numbers_and_gradients() -> None:
    pytest.importorskip("liger_kernel", reason="the extra 'kernels' is not installed")
    seen = []
    for liger in (True, False):
        hidden, weight = (tensor.float().clone().requires_grad_() for tensor in (HIDDEN, WEIGHT))
        temperature = torch.tensor([0.5, 1.0] * N)[:N]
        rows = (LigerRows if liger else HeadRows)(hidden, VocabularyHead(weight_VD=weight), temperature)
        logps = rows.logps(IDS[:, :1])
        (logps[:, 0] * torch.arange(N)).sum().backward()
        seen.append((logps, hidden.grad, weight.grad, rows.topk(2)[0]))
    for mine, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_fused_kernel_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(ValueError, match=r"head_kernel: liger cannot be imported .* clawrl\[kernels\], or set torch"):
        check_liger()
