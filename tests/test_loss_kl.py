import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch

from clawrl.loss import kl_estimate, kl_penalty

torch.set_num_threads(1)

Kind = Literal["k1", "k2", "k3"]
CLOSED_FORM: dict[Kind, Callable[[float], float]] = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
}
KINDS = pytest.mark.parametrize("kind", CLOSED_FORM)


def column(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64, requires_grad=grad)


@KINDS
@pytest.mark.parametrize("d", [-3.0, -0.5, 0.0, 0.5, 3.0])
def test_an_estimate_is_its_closed_form(kind: Kind, d: float) -> None:
    assert kl_estimate(column(-4.0 + d), column(-4.0), kind).item() == pytest.approx(CLOSED_FORM[kind](d))


@pytest.mark.parametrize(("kind", "tolerance"), [("k1", 1e-12), ("k3", 1e-12), ("k2", 0.05)])
def test_the_expected_estimate_is_the_divergence(kind: Kind, tolerance: float) -> None:
    policy_V, reference_V = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    estimate_V = kl_estimate(column(*np.log(policy_V)), column(*np.log(reference_V)), kind).numpy()[0]
    exact = sum(p * math.log(p / q) for p, q in zip(policy_V, reference_V, strict=True))
    assert (policy_V * estimate_V).sum() == pytest.approx(exact, rel=tolerance)


@KINDS
def test_gradients_agree_with_finite_differences_and_spare_the_reference(kind: Kind) -> None:
    logp_BT, reference_BT = column(-1.0, -2.1, -0.3, -4.0, grad=True), column(-1.05, -1.0, -1.2, -4.1, grad=True)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, reference_BT.detach(), kind), (logp_BT,))
    kl_estimate(logp_BT, reference_BT, kind).sum().backward()
    assert logp_BT.grad is not None and reference_BT.grad is None


def test_k3_has_its_minimum_where_policy_and_reference_agree() -> None:
    logp_BT = column(-1.5, grad=True)
    kl_BT = kl_estimate(logp_BT, column(-1.5), "k3")
    kl_BT.sum().backward()
    assert kl_BT.item() == 0.0
    assert logp_BT.grad is not None and logp_BT.grad.item() == 0.0


def test_k3_of_float32_near_agreement_is_not_rounding_noise() -> None:
    d = 1e-4
    kl = kl_estimate(torch.tensor([d]), torch.zeros(1), "k3").item()
    assert kl == pytest.approx(d * d / 2, rel=0.02)


@KINDS
@pytest.mark.parametrize("gap", [1e4, -1e4, -math.inf])
def test_absurd_log_ratios_stay_finite_with_finite_gradients(kind: Kind, gap: float) -> None:
    logp_BT = torch.full((1, 2), gap, dtype=torch.float32, requires_grad=True)
    total = kl_estimate(logp_BT, torch.zeros(1, 2), kind).sum()
    total.backward()
    assert torch.isfinite(total)
    assert logp_BT.grad is not None and torch.isfinite(logp_BT.grad).all()


LOGITS_V, OLD_V, REF_V = [0.3, -1.1, 0.8, 0.0], [0.1, -0.7, 1.2, 0.4], [1.0, 0.2, -0.5, 0.1]


def logps(logits_V: list[float], *, grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and the log-probs of the whole vocabulary."""
    leaf_V = torch.tensor(logits_V, dtype=torch.float64, requires_grad=grad)
    return leaf_V, torch.log_softmax(leaf_V, -1)


def expected_gradient(kind: Kind | None, sampled_from: list[float] = LOGITS_V) -> torch.Tensor:
    """Of the penalty, over tokens drawn from ``sampled_from``; ``None``: of the k1 estimate as it is."""
    leaf_V, logp_V = logps(LOGITS_V, grad=True)
    old_V, ref_V = logps(sampled_from)[1], logps(REF_V)[1]
    term_V = kl_estimate(logp_V, ref_V, "k1") if kind is None else kl_penalty(logp_V, old_V, ref_V, kind)
    return torch.autograd.grad((old_V.exp() * term_V).sum(), leaf_V)[0]


def divergence_gradient(*, forward: bool) -> torch.Tensor:
    """Of KL(policy || reference), or of KL(reference || policy), by autograd over the whole vocabulary."""
    leaf_V, logp_V = logps(LOGITS_V, grad=True)
    ref_V = logps(REF_V)[1]
    kl = (logp_V.exp() * (logp_V - ref_V)).sum() if forward else (ref_V.exp() * (ref_V - logp_V)).sum()
    return torch.autograd.grad(kl, leaf_V)[0]


@pytest.mark.parametrize(("kind", "forward"), [("k1", True), ("k2", True), ("k3", False)])
def test_the_expected_gradient_of_a_penalty_is_that_of_a_divergence(kind: Kind, forward: bool) -> None:
    torch.testing.assert_close(expected_gradient(kind), divergence_gradient(forward=forward))
    other = divergence_gradient(forward=not forward)
    assert (expected_gradient(kind) - other).abs().max() > 0.1, "the two directions differ here"


def test_the_k1_estimate_itself_pulls_nowhere_and_its_penalty_pulls_right_for_older_samples_too() -> None:
    assert expected_gradient(None).abs().max() < 1e-12
    torch.testing.assert_close(expected_gradient("k1", OLD_V), divergence_gradient(forward=True))


@KINDS
@pytest.mark.parametrize("gap", [1e4, -1e4, -math.inf])
def test_an_absurd_penalty_stays_finite_with_a_finite_gradient(kind: Kind, gap: float) -> None:
    logp_BT = torch.full((1, 2), gap, dtype=torch.float32, requires_grad=True)
    total = kl_penalty(logp_BT, torch.zeros(1, 2), torch.zeros(1, 2), kind).sum()
    total.backward()
    assert torch.isfinite(total)
    assert logp_BT.grad is not None and torch.isfinite(logp_BT.grad).all()


def test_an_unknown_estimator_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'k4'.*k1, k2 or k3"):
        kl_estimate(column(0.0), column(0.0), "k4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'k4'.*k1, k2 or k3"):
        kl_penalty(column(0.0), column(0.0), column(0.0), "k4")  # type: ignore[arg-type]
