import math

import numpy as np
import pytest
import torch
from torch import Tensor

from clawrl.loss import TokenDistribution

torch.set_num_threads(1)

TEMPERATURE_B = torch.tensor([0.6, 1.3], dtype=torch.float64)
TARGETS_BT = torch.tensor([[0, 6, 3], [2, 2, 5]])


def random_logits() -> Tensor:
    return torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5


def reference_log_softmax(logits_BTV: Tensor) -> np.ndarray:
    z = logits_BTV.numpy()
    out = np.empty_like(z)
    for b in range(z.shape[0]):
        for t in range(z.shape[1]):
            scaled = [float(value) / float(TEMPERATURE_B[b]) for value in z[b, t]]
            total = sum(math.exp(value - max(scaled)) for value in scaled)
            out[b, t] = [value - max(scaled) - math.log(total) for value in scaled]
    return out


def test_log_probs_are_the_log_softmax_at_each_samples_own_temperature() -> None:
    logits_BTV = random_logits()
    policy, expected = TokenDistribution.of_logits(logits_BTV, TEMPERATURE_B), reference_log_softmax(logits_BTV)
    some_BTK = torch.stack([TARGETS_BT, (TARGETS_BT + 1) % 7], dim=-1)
    for b in range(2):
        for t in range(3):
            assert policy.logp(TARGETS_BT)[b, t].item() == pytest.approx(expected[b, t, TARGETS_BT[b, t]], abs=1e-12)
            for k in range(2):
                value = policy.logps(some_BTK)[b, t, k].item()
                assert value == pytest.approx(expected[b, t, some_BTK[b, t, k]], abs=1e-12)


def test_topk_names_the_most_likely_tokens_best_first() -> None:
    logits_BTV = random_logits()
    ids_BTk, logp_BTk = TokenDistribution.of_logits(logits_BTV, TEMPERATURE_B).topk(3)
    expected = reference_log_softmax(logits_BTV)
    for b in range(2):
        for t in range(3):
            best = sorted(range(7), key=lambda v: -expected[b, t, v])[:3]
            assert ids_BTk[b, t].tolist() == best
            assert logp_BTk[b, t].tolist() == pytest.approx([expected[b, t, v] for v in best], abs=1e-12)


def test_entropy_is_that_of_the_whole_vocabulary() -> None:
    logits_BTV = random_logits()
    entropy_BT, expected = (
        TokenDistribution.of_logits(logits_BTV, TEMPERATURE_B).entropy(),
        reference_log_softmax(logits_BTV),
    )
    for b in range(2):
        for t in range(3):
            value = -sum(math.exp(logp) * logp for logp in expected[b, t])
            assert entropy_BT[b, t].item() == pytest.approx(value, abs=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    logits_BTV = random_logits().requires_grad_()
    some_BTK = torch.stack([TARGETS_BT, (TARGETS_BT + 1) % 7], dim=-1)
    for read in (
        lambda policy: policy.logp(TARGETS_BT),
        lambda policy: policy.logps(some_BTK),
        lambda policy: policy.topk(2)[1],
        lambda policy: policy.entropy(),
    ):
        assert torch.autograd.gradcheck(
            lambda z, read=read: read(TokenDistribution.of_logits(z, TEMPERATURE_B)), (logits_BTV,)
        )


def test_a_token_that_cannot_be_drawn_changes_neither_entropy_nor_gradients_of_the_others() -> None:
    logits_BTV = random_logits()
    logits_BTV[..., 4] = -torch.inf
    logits_BTV[1, 2, [0, 1, 2, 3, 6]] = -torch.inf
    logits_BTV.requires_grad_()
    policy = TokenDistribution.of_logits(logits_BTV, TEMPERATURE_B)
    (policy.entropy().sum() + policy.logp(TARGETS_BT).sum()).backward()
    grad_BTV = logits_BTV.grad
    assert grad_BTV is not None and torch.isfinite(grad_BTV).all() and not grad_BTV[..., 4].any()
    assert policy.entropy()[1, 2].item() == pytest.approx(0.0, abs=1e-12), "one token is left"

    rest_BTV = logits_BTV.detach()[..., [0, 1, 2, 3, 5, 6]].requires_grad_()
    rest = TokenDistribution.of_logits(rest_BTV, TEMPERATURE_B)
    rest_targets_BT = TARGETS_BT - (TARGETS_BT > 4).long()
    (rest.entropy().sum() + rest.logp(rest_targets_BT).sum()).backward()
    assert rest_BTV.grad is not None
    torch.testing.assert_close(policy.entropy(), rest.entropy(), rtol=0, atol=1e-12)
    torch.testing.assert_close(grad_BTV[..., [0, 1, 2, 3, 5, 6]], rest_BTV.grad, rtol=0, atol=1e-12)


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    policy = TokenDistribution.of_logits(torch.zeros(1, 1, 1000, dtype=torch.bfloat16), torch.ones(1))
    logp_BT = policy.logp(torch.zeros(1, 1, dtype=torch.long))
    assert logp_BT.dtype == policy.entropy().dtype == torch.float32
    assert logp_BT.item() == pytest.approx(-6.907755, abs=1e-5)
    assert policy.entropy().item() == pytest.approx(6.907755, abs=1e-5)
