from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clawrl.loss import sample_mean, token_mean

torch.set_num_threads(1)

VALUE_BT = torch.tensor([[1.0, 2.0, 3.0, 9.0], [10.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]], dtype=torch.float64)
MASK_BT = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
Aggregate = Callable[[Tensor, Tensor, int], Tensor]
BOTH = pytest.mark.parametrize(("aggregate", "denominator"), [(token_mean, 4), (sample_mean, 2)])


def test_token_mean_weighs_tokens_and_sample_mean_weighs_samples() -> None:
    assert token_mean(VALUE_BT, MASK_BT, 4).item() == pytest.approx((1 + 2 + 3 + 10) / 4)
    assert sample_mean(VALUE_BT, MASK_BT, 2).item() == pytest.approx((2 + 10) / 2)


@BOTH
def test_splits_padding_and_order_do_not_change_value_or_gradient(aggregate: Aggregate, denominator: int) -> None:
    def gradient(parts: list[list[int]], padding: int) -> tuple[float, Tensor]:
        value_BT = VALUE_BT.clone().requires_grad_()
        wide_BT = torch.nn.functional.pad(value_BT, (padding, 1), value=7.0)
        mask_BT = torch.nn.functional.pad(MASK_BT, (padding, 1))
        total = sum(aggregate(wide_BT[part], mask_BT[part], denominator) for part in parts)
        assert isinstance(total, Tensor)
        total.backward()
        assert value_BT.grad is not None
        return total.item(), value_BT.grad

    whole, whole_grad = gradient([[0, 1, 2]], 0)
    for parts, padding in (([[2, 1, 0]], 0), ([[0], [1], [2]], 0), ([[2, 0], [1]], 5)):
        value, grad = gradient(parts, padding)
        assert value == pytest.approx(whole, abs=1e-12)
        torch.testing.assert_close(grad, whole_grad, rtol=0, atol=1e-12)


@BOTH
def test_an_all_masked_batch_is_a_finite_zero_with_a_graph(aggregate: Aggregate, denominator: int) -> None:
    value_BT = VALUE_BT.clone().requires_grad_()
    total = aggregate(value_BT, torch.zeros_like(MASK_BT), 0)
    total.backward()
    assert total.item() == 0.0
    assert value_BT.grad is not None and not value_BT.grad.any()


@BOTH
def test_a_masked_value_that_is_not_finite_does_not_leak(aggregate: Aggregate, denominator: int) -> None:
    poisoned_BT = torch.where(MASK_BT, VALUE_BT, torch.nan).requires_grad_()
    total = aggregate(poisoned_BT, MASK_BT, denominator)
    total.backward()
    assert total.item() == pytest.approx(aggregate(VALUE_BT, MASK_BT, denominator).item())
    assert poisoned_BT.grad is not None and torch.isfinite(poisoned_BT.grad).all()
