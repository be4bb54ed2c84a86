import math

import pytest
import torch

from clawrl.loss import clipped_policy_loss, truncated_importance_weight

torch.set_num_threads(1)

LOW, HIGH = 0.2, 0.28


def column(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.1, 1.0, -1.1, False),
        (1.5, 1.0, -1.28, True),
        (0.5, 1.0, -0.5, False),
        (1.1, -1.0, 1.1, False),
        (1.5, -1.0, 1.5, False),
        (0.5, -1.0, 0.8, True),
        (3.0, 0.0, 0.0, False),
    ],
)
def test_clipped_policy_loss_follows_its_closed_form(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    logp_BT = column(math.log(ratio) - 1.0, grad=True)
    loss_BT, clipped_BT = clipped_policy_loss(logp_BT, column(-1.0), column(advantage), LOW, HIGH)
    assert loss_BT.item() == pytest.approx(loss)
    assert clipped_BT.item() is clipped
    loss_BT.sum().backward()
    assert logp_BT.grad is not None
    assert logp_BT.grad.item() == pytest.approx(0.0 if clipped else -ratio * advantage)


def test_a_trusted_token_has_the_policy_gradient_whatever_its_log_prob() -> None:
    logp_BT = column(-0.1, -3.0, -40.0, grad=True)
    clipped_policy_loss(logp_BT, logp_BT.detach(), column(0.5), LOW, HIGH)[0].sum().backward()
    assert logp_BT.grad is not None
    assert logp_BT.grad.tolist() == [[-0.5, -0.5, -0.5]]


def test_policy_loss_gradient_agrees_with_finite_differences() -> None:
    logp_BT = column(-1.0, -2.1, -0.3, -4.0, grad=True)
    old_BT, advantage_BT = column(-1.05, -1.0, -1.2, -4.1), column(1.0, -0.5, 2.0, -1.0)
    assert torch.autograd.gradcheck(
        lambda x: clipped_policy_loss(x, old_BT, advantage_BT, LOW, HIGH)[0], (logp_BT,), eps=1e-7
    )


def test_importance_weight_is_truncated_detached_and_flagged() -> None:
    old_BT, behaviour_BT = column(-1.0, -1.0, -1.0, grad=True), column(-1.0, -3.0, 0.0)
    weight_BT, clipped_BT = truncated_importance_weight(old_BT, behaviour_BT, 2.0)
    assert weight_BT.tolist()[0] == pytest.approx([1.0, 2.0, math.exp(-1.0)])
    assert clipped_BT.tolist() == [[False, True, False]]
    assert not weight_BT.requires_grad


@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_absurd_log_ratios_stay_finite_with_finite_gradients(gap: float) -> None:
    logp_BT = torch.full((1, 2), gap, dtype=torch.float32, requires_grad=True)
    zero_BT = torch.zeros(1, 2)
    loss_BT, _ = clipped_policy_loss(logp_BT, zero_BT, torch.tensor([[0.0, -1.0]]), LOW, HIGH)
    weight_BT, _ = truncated_importance_weight(logp_BT, zero_BT, 2.0)
    total = (loss_BT * weight_BT).sum()
    total.backward()
    assert torch.isfinite(total)
    assert logp_BT.grad is not None and torch.isfinite(logp_BT.grad).all()
