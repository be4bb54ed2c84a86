import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from clawrl.loss import DifferenceClip, difference_clip_loss, known_ids

torch.set_num_threads(1)

LOW, HIGH = 0.2, 0.28
SHAPE = (3, 4, 5)


def random_case(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def logps() -> Tensor:
        logits_BTV = torch.randn(*SHAPE[:2], 11, generator=generator, dtype=torch.float64) * 2
        return torch.log_softmax(logits_BTV, -1)[..., : SHAPE[2]].contiguous()

    old_BTS = logps()
    support_BTS = torch.rand(SHAPE, generator=generator) < 0.7
    support_BTS[0, 1], support_BTS[1, 0] = False, True
    return {
        "logp_BTS": old_BTS + torch.randn(SHAPE, generator=generator, dtype=torch.float64) * 0.3,
        "old_logp_BTS": old_BTS,
        "teacher_logp_BTS": logps(),
        "support_BTS": support_BTS,
        "known_BTS": torch.rand(SHAPE, generator=generator) < 0.7,
    }


def reference(case: dict[str, Tensor], clip: float) -> dict[str, np.ndarray]:
    logp, old, teacher, support, known = (tensor.detach().numpy() for tensor in case.values())
    out = {field.name: np.zeros(SHAPE[:2]) for field in fields(DifferenceClip)}
    for b in range(SHAPE[0]):
        for t in range(SHAPE[1]):
            total = sum(math.exp(old[b, t, s]) for s in range(SHAPE[2]) if support[b, t, s])
            for s in range(SHAPE[2]):
                if not support[b, t, s]:
                    continue
                weight = math.exp(old[b, t, s]) / total
                if not known[b, t, s]:
                    out["unknown_weight_BT"][b, t] += weight
                    continue
                difference = teacher[b, t, s] - old[b, t, s]
                if clip > 0:
                    difference = min(max(difference, -clip), clip)
                ratio = math.exp(logp[b, t, s] - old[b, t, s])
                limited = min(max(ratio, 1 - LOW), 1 + HIGH)
                plain_loss, limited_loss = -weight * difference * ratio, -weight * difference * limited
                out["loss_BT"][b, t] += max(plain_loss, limited_loss)
                out["clipped_BT"][b, t] += weight if limited_loss > plain_loss else 0.0
                out["gap_BT"][b, t] += weight * abs(difference)
    return out


def run(case: dict[str, Tensor], clip: float = 1.0) -> DifferenceClip:
    return difference_clip_loss(**case, clip=clip, eps_clip=LOW, eps_clip_high=HIGH)


@pytest.mark.parametrize("clip", [1.0, 0.5, 0.0, -1.0])
def test_the_loss_agrees_with_loops_over_tokens_and_ids(clip: float) -> None:
    for seed in range(3):
        case = random_case(seed)
        out, expected = run(case, clip), reference(case, clip)
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(out, name).numpy(), value, rtol=0, atol=1e-12, err_msg=name)
            assert value.any(), f"{name} is exercised"


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_the_gradient_agrees_with_finite_differences_and_goes_through_the_policy_only(clip: float) -> None:
    case = random_case(0)
    for name in ("logp_BTS", "old_logp_BTS", "teacher_logp_BTS"):
        case[name].requires_grad_()
    constants = {name: tensor.detach() for name, tensor in case.items()}
    assert torch.autograd.gradcheck(lambda x: run({**constants, "logp_BTS": x}, clip).loss_BT, (case["logp_BTS"],))
    out = run(case, clip)
    out.loss_BT.sum().backward()
    used_BTS = case["support_BTS"] & case["known_BTS"]
    grad_BTS = case["logp_BTS"].grad
    assert grad_BTS is not None and grad_BTS[used_BTS].any() and not grad_BTS[~used_BTS].any()
    assert case["old_logp_BTS"].grad is None and case["teacher_logp_BTS"].grad is None
    assert not any(tensor.requires_grad for tensor in (out.clipped_BT, out.unknown_weight_BT, out.gap_BT))


@pytest.mark.parametrize(
    ("ratio", "difference", "loss", "clipped"),
    [
        (1.0, 0.5, -0.5, 0.0),
        (1.1, 0.5, -0.55, 0.0),
        (1.5, 0.5, -0.64, 1.0),
        (0.5, 0.5, -0.25, 0.0),
        (1.5, -0.5, 0.75, 0.0),
        (0.5, -0.5, 0.4, 1.0),
        (1.1, 7.0, -1.1, 0.0),
        (1.1, -7.0, 1.1, 0.0),
        (3.0, 0.0, 0.0, 0.0),
    ],
)
def test_one_token_follows_its_closed_form(ratio: float, difference: float, loss: float, clipped: float) -> None:
    def one(value: float) -> Tensor:
        return torch.tensor([[[value]]], dtype=torch.float64)

    yes = torch.ones(1, 1, 1, dtype=torch.bool)
    logp_BTS = one(-2.0 + math.log(ratio)).requires_grad_()
    out = difference_clip_loss(
        logp_BTS, one(-2.0), one(-2.0 + difference), yes, yes, clip=1.0, eps_clip=LOW, eps_clip_high=HIGH
    )
    out.loss_BT.sum().backward()
    assert out.loss_BT.item() == pytest.approx(loss) and out.clipped_BT.item() == clipped
    assert out.gap_BT.item() == pytest.approx(min(abs(difference), 1.0))
    assert logp_BTS.grad is not None
    assert logp_BTS.grad.item() == pytest.approx(0.0 if clipped else loss)


def test_a_token_is_a_sum_over_its_ids_with_weights_of_the_old_policy() -> None:
    old_BTS = torch.log(torch.tensor([[[0.3, 0.1, 0.6]]], dtype=torch.float64))
    teacher_BTS = old_BTS + torch.tensor([0.4, -0.8, 5.0], dtype=torch.float64)
    support_BTS = torch.tensor([[[True, True, False]]])
    out = difference_clip_loss(
        old_BTS, old_BTS, teacher_BTS, support_BTS, support_BTS, clip=1.0, eps_clip=LOW, eps_clip_high=HIGH
    )
    assert out.loss_BT.item() == pytest.approx(-(0.75 * 0.4 - 0.25 * 0.8))
    assert out.gap_BT.item() == pytest.approx(0.75 * 0.4 + 0.25 * 0.8)


def test_mass_that_leaves_the_support_as_a_whole_is_seen() -> None:
    case = random_case(0)
    case["known_BTS"] = case["support_BTS"]
    case["teacher_logp_BTS"] = case["old_logp_BTS"] + 0.5
    stay = run({**case, "logp_BTS": case["old_logp_BTS"]}).loss_BT
    leave = run({**case, "logp_BTS": case["old_logp_BTS"] - 1.0}).loss_BT
    seen_BT = case["support_BTS"].any(-1)
    torch.testing.assert_close(leave[seen_BT], stay[seen_BT] * math.exp(-1.0), rtol=1e-9, atol=0)


def test_a_support_without_the_token_that_the_teacher_wants_feeds_the_whole_tail() -> None:
    # Two likely tokens, one that the teacher wants instead (an end, say), and a tail that it finds less likely.
    old_BTV = torch.tensor([[[0.3, 0.3, 0.05, *[0.035] * 10]]], dtype=torch.float64).log()
    teacher_BTV = torch.tensor([[[0.15, 0.15, 0.6, *[0.01] * 10]]], dtype=torch.float64).log()

    def step(support: int) -> Tensor:
        """How the probabilities change, by a small step down the gradient of the loss."""
        logits_BTV = old_BTV.clone().requires_grad_()
        kept = [tensor_BTV[..., :support] for tensor_BTV in (torch.log_softmax(logits_BTV, -1), old_BTV, teacher_BTV)]
        everything = torch.ones_like(kept[1], dtype=torch.bool)
        out = difference_clip_loss(*kept, everything, everything, clip=0.0, eps_clip=LOW, eps_clip_high=HIGH)
        (gradient_BTV,) = torch.autograd.grad(out.loss_BT.sum(), logits_BTV)
        return (torch.softmax(old_BTV - 1e-3 * gradient_BTV, -1) - old_BTV.exp())[0, 0]

    whole_V, likely_V = step(support=13), step(support=2)
    assert whole_V[2] > 0 and whole_V[3:].sum() < 0
    assert likely_V[2] > 0 and likely_V[3:].sum() > 0


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_an_empty_hint_teaches_nothing(clip: float) -> None:
    case = random_case(0)
    case["teacher_logp_BTS"] = case["old_logp_BTS"].clone()
    case["logp_BTS"].requires_grad_()
    out = run(case, clip)
    out.loss_BT.sum().backward()
    assert out.loss_BT.abs().max() <= 1e-6 and out.gap_BT.max() <= 1e-6
    assert case["logp_BTS"].grad is not None and case["logp_BTS"].grad.abs().max() <= 1e-6


def test_what_stands_outside_the_support_or_is_unknown_does_not_matter() -> None:
    case = random_case(0)
    clean = run(case)
    outside_BTS = ~case["support_BTS"]
    for name in ("logp_BTS", "old_logp_BTS", "teacher_logp_BTS"):
        case[name] = case[name].masked_fill(outside_BTS, torch.nan)
    case["teacher_logp_BTS"] = case["teacher_logp_BTS"].masked_fill(~case["known_BTS"], torch.nan)
    case["logp_BTS"].requires_grad_()
    out = run(case)
    out.loss_BT.sum().backward()
    for field in fields(DifferenceClip):
        assert torch.equal(getattr(out, field.name), getattr(clean, field.name)), field.name
    assert case["logp_BTS"].grad is not None and torch.isfinite(case["logp_BTS"].grad).all()


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_rows_without_support_are_exactly_zero(clip: float) -> None:
    case = random_case(0)
    case["support_BTS"] = torch.zeros(SHAPE, dtype=torch.bool)
    case["logp_BTS"].requires_grad_()
    out = run(case, clip)
    out.loss_BT.sum().backward()
    assert not any(getattr(out, field.name).any() for field in fields(DifferenceClip))
    assert case["logp_BTS"].grad is not None and not case["logp_BTS"].grad.any()


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_a_token_that_cannot_be_drawn_weighs_nothing(clip: float) -> None:
    case = random_case(0)
    case["known_BTS"] = torch.ones(SHAPE, dtype=torch.bool)
    case["support_BTS"][1, 0] = torch.tensor([True, True, False, False, True])
    without = {**case, "support_BTS": case["support_BTS"].clone()}
    without["support_BTS"][1, 0, 1] = False
    without["support_BTS"][2, 2] = False
    case["support_BTS"][2, 2] = True
    for name in ("logp_BTS", "old_logp_BTS"):
        case[name] = case[name].clone()
        case[name][1, 0, 1] = case[name][2, 2] = -torch.inf
    case["logp_BTS"].requires_grad_()
    out, expected = run(case, clip), run(without, clip)
    out.loss_BT.sum().backward()
    for field in fields(DifferenceClip):
        torch.testing.assert_close(getattr(out, field.name), getattr(expected, field.name), rtol=0, atol=1e-12)
    assert case["logp_BTS"].grad is not None and torch.isfinite(case["logp_BTS"].grad).all()


@pytest.mark.parametrize("gap", [1e4, -1e4, -math.inf])
def test_absurd_ratios_stay_finite_with_finite_gradients(gap: float) -> None:
    case = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in random_case(0).items()}
    case["logp_BTS"] = torch.full(SHAPE, gap, requires_grad=True)
    loss_BT = run(case, 0.0).loss_BT
    loss_BT.sum().backward()
    assert torch.isfinite(loss_BT).all()
    assert case["logp_BTS"].grad is not None and torch.isfinite(case["logp_BTS"].grad).all()


@pytest.mark.parametrize(
    ("found", "bound", "old", "clip", "known"),
    [
        (True, -9.0, -1.0, 1.0, True),
        (True, -1.0, -9.0, 1.0, True),
        (False, -3.0, -1.0, 1.0, True),
        (False, -2.0, -1.0, 1.0, True),
        (False, -1.9, -1.0, 1.0, False),
        (False, -1.0, -9.0, 1.0, False),
        (False, -9.0, -1.0, 0.0, False),
        (False, -9.0, -1.0, -1.0, False),
        (True, -9.0, -1.0, 0.0, True),
    ],
)
def test_an_id_is_known_when_listed_or_when_its_bound_settles_the_clip(
    found: bool, bound: float, old: float, clip: float, known: bool
) -> None:
    known_BTS = known_ids(torch.tensor([[[found]]]), torch.tensor([[[bound]]]), torch.tensor([[[old]]]), clip)
    assert known_BTS.dtype == torch.bool and known_BTS.item() is known


def test_a_known_id_that_is_not_listed_gives_the_loss_of_its_true_value() -> None:
    case = random_case(0)
    bound_BTS = case["teacher_logp_BTS"].clone()
    case["known_BTS"] = known_ids(torch.zeros(SHAPE, dtype=torch.bool), bound_BTS, case["old_logp_BTS"], 1.0)
    assert (case["known_BTS"] & case["support_BTS"]).any()
    true_BTS = bound_BTS - torch.rand(SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 9
    assert torch.equal(run(case).loss_BT, run({**case, "teacher_logp_BTS": true_BTS}).loss_BT)
