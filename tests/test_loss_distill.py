import math

import numpy as np
import pytest
import torch
from torch import Tensor

from clawrl.loss import tail_kl, token_advantage

torch.set_num_threads(1)


def random_logps(seed: int, vocabulary: int = 9, listed: int = 4) -> Tensor:
    """Log-probs of the first few of a vocabulary's tokens -> float64 [2, 3, listed]."""
    generator = torch.Generator().manual_seed(seed)
    logits_BTV = torch.randn(2, 3, vocabulary, generator=generator, dtype=torch.float64) * 2
    return torch.log_softmax(logits_BTV, -1)[..., :listed].contiguous()


SUPPORT_BTS = torch.tensor(
    [[[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], [[0, 0, 0, 1], [1, 1, 0, 1], [0, 1, 1, 1]]], dtype=torch.bool
)


def reference_tail_kl(student: np.ndarray, teacher: np.ndarray, support: np.ndarray) -> np.ndarray:
    out = np.zeros(student.shape[:2])
    for b in range(student.shape[0]):
        for t in range(student.shape[1]):
            inside_s = inside_t = 0.0
            for s in range(student.shape[2]):
                if support[b, t, s]:
                    p, q = math.exp(student[b, t, s]), math.exp(teacher[b, t, s])
                    out[b, t] += p * (math.log(p) - math.log(q))
                    inside_s, inside_t = inside_s + p, inside_t + q
            rest_s, rest_t = max(1.0 - inside_s, 1e-7), max(1.0 - inside_t, 1e-7)
            if support[b, t].any():
                out[b, t] += rest_s * (math.log(rest_s) - math.log(rest_t))
    return out


def gradient(logp_BTS: Tensor, teacher_logp_BTS: Tensor, support_BTS: Tensor) -> tuple[Tensor, Tensor]:
    logp_BTS = logp_BTS.clone().requires_grad_()
    kl_BT = tail_kl(logp_BTS, teacher_logp_BTS, support_BTS)
    kl_BT.sum().backward()
    assert logp_BTS.grad is not None
    return kl_BT.detach(), logp_BTS.grad


def test_tail_kl_agrees_with_loops_over_tokens_and_bins() -> None:
    student_BTS, teacher_BTS = random_logps(0), random_logps(1)
    kl_BT = tail_kl(student_BTS, teacher_BTS, SUPPORT_BTS)
    expected = reference_tail_kl(student_BTS.numpy(), teacher_BTS.numpy(), SUPPORT_BTS.numpy())
    np.testing.assert_allclose(kl_BT.numpy(), expected, rtol=0, atol=1e-12)
    assert kl_BT[SUPPORT_BTS.any(-1)].min() > 1e-3, "the two sides differ everywhere"


def test_tail_kl_gradient_agrees_with_finite_differences_and_spares_the_teacher() -> None:
    student_BTS, teacher_BTS = random_logps(0).requires_grad_(), random_logps(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: tail_kl(x, teacher_BTS.detach(), SUPPORT_BTS), (student_BTS,))
    tail_kl(student_BTS, teacher_BTS, SUPPORT_BTS).sum().backward()
    assert teacher_BTS.grad is None


def test_tail_kl_is_smallest_where_student_and_teacher_agree() -> None:
    student_BTS = random_logps(0)
    kl_BT, grad_BTS = gradient(student_BTS, student_BTS, SUPPORT_BTS)
    assert not kl_BT.any()
    torch.testing.assert_close(grad_BTS, torch.zeros_like(grad_BTS), rtol=0, atol=1e-12)


def test_a_finer_support_never_sees_less_divergence() -> None:
    student_BTS, teacher_BTS = random_logps(0), random_logps(1)
    coarse_BT = tail_kl(student_BTS, teacher_BTS, SUPPORT_BTS)
    fine_BT = tail_kl(student_BTS, teacher_BTS, torch.ones_like(SUPPORT_BTS))
    assert (fine_BT - coarse_BT >= -1e-12).all()


def test_tail_kl_over_the_whole_vocabulary_is_the_divergence() -> None:
    student_BTS, teacher_BTS = random_logps(0, 5, 5), random_logps(1, 5, 5)
    kl_BT, grad_BTS = gradient(student_BTS, teacher_BTS, torch.ones(2, 3, 5, dtype=torch.bool))
    exact_BT = (student_BTS.exp() * (student_BTS - teacher_BTS)).sum(-1)
    torch.testing.assert_close(kl_BT, exact_BT, rtol=0, atol=1e-6)
    assert torch.isfinite(grad_BTS).all()


def test_what_stands_outside_the_support_has_no_value_and_no_gradient() -> None:
    student_BTS, teacher_BTS = random_logps(0), random_logps(1)
    clean_BT, clean_BTS = gradient(student_BTS, teacher_BTS, SUPPORT_BTS)
    kl_BT, grad_BTS = gradient(
        student_BTS.masked_fill(~SUPPORT_BTS, torch.nan), teacher_BTS.masked_fill(~SUPPORT_BTS, torch.inf), SUPPORT_BTS
    )
    assert torch.equal(kl_BT, clean_BT) and torch.equal(grad_BTS, clean_BTS)
    assert not grad_BTS[~SUPPORT_BTS].any() and grad_BTS[SUPPORT_BTS].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_without_support_is_exactly_zero(dtype: torch.dtype) -> None:
    nothing_BTS = torch.zeros(2, 3, 4, dtype=torch.bool)
    kl_BT, grad_BTS = gradient(random_logps(0).to(dtype), random_logps(1).to(dtype), nothing_BTS)
    assert not kl_BT.any() and not grad_BTS.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        ([0.0, -torch.inf], [math.log(0.5), math.log(0.5)]),
        ([math.log(0.5), math.log(0.5)], [0.0, -torch.inf]),
        ([0.0, -200.0], [-200.0, 0.0]),
        ([-torch.inf, -torch.inf], [math.log(0.5), math.log(0.25)]),
        ([0.0, 0.0], [0.0, 0.0]),
    ],
    ids=["student is certain", "teacher is certain", "both are certain", "nothing is supported", "listed twice"],
)
def test_tail_kl_stays_finite_at_the_edges(student: list[float], teacher: list[float], dtype: torch.dtype) -> None:
    student_BTS, teacher_BTS = torch.tensor([[student]], dtype=dtype), torch.tensor([[teacher]], dtype=dtype)
    kl_BT, grad_BTS = gradient(student_BTS, teacher_BTS, torch.ones(1, 1, 2, dtype=torch.bool))
    assert torch.isfinite(kl_BT).all() and torch.isfinite(grad_BTS).all()


def test_a_certain_student_costs_what_the_teacher_thinks_of_its_one_token() -> None:
    student_BTS = torch.tensor([[[0.0, -torch.inf]]], dtype=torch.float64)
    teacher_BTS = torch.tensor([[[-2.0, -3.0]]], dtype=torch.float64)
    kl_BT = tail_kl(student_BTS, teacher_BTS, torch.ones(1, 1, 2, dtype=torch.bool))
    assert kl_BT.item() == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize(
    ("teacher", "old", "clip", "advantage"),
    [
        (-1.0, -1.5, 1.0, 0.5),
        (-1.0, -3.0, 1.0, 1.0),
        (-3.0, -1.0, 1.0, -1.0),
        (-3.0, -1.0, 0.0, -2.0),
        (-1.0, -9.0, -1.0, 8.0),
        (-2.0, -2.0, 1.0, 0.0),
    ],
)
def test_a_token_advantage_is_the_limited_difference(teacher: float, old: float, clip: float, advantage: float) -> None:
    old_BT = torch.tensor([[old]], requires_grad=True)
    advantage_BT = token_advantage(torch.tensor([[teacher]]), old_BT, clip)
    assert advantage_BT.item() == pytest.approx(advantage)
    assert not advantage_BT.requires_grad


def test_an_empty_hint_has_no_advantage_anywhere() -> None:
    logp_BT = random_logps(0)[..., 0]
    assert token_advantage(logp_BT, logp_BT.clone(), 1.0).abs().max() <= 1e-6
