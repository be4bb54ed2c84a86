import pytest
import torch

from clawrl.loss import predictors, token_logps

torch.set_num_threads(1)


def test_token_logps_are_the_log_softmax_at_each_samples_own_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BTV = torch.randn(2, 3, 7, generator=generator) * 5
    targets_BT = torch.tensor([[0, 6, 3], [2, 2, 5]])
    temperature_B = torch.tensor([0.6, 1.3])
    logp_BT = token_logps(logits_BTV, targets_BT, temperature_B)
    for b in range(2):
        for t in range(3):
            expected = torch.log_softmax(logits_BTV[b, t] / temperature_B[b], -1)[targets_BT[b, t]]
            assert logp_BT[b, t].item() == pytest.approx(expected.item(), abs=1e-6)


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    logits_BTV = torch.zeros(1, 1, 1000, dtype=torch.bfloat16)
    logp_BT = token_logps(logits_BTV, torch.zeros(1, 1, dtype=torch.long), torch.ones(1))
    assert logp_BT.dtype == torch.float32
    assert logp_BT.item() == pytest.approx(-6.907755, abs=1e-5)


def test_token_logps_gradient_agrees_with_finite_differences() -> None:
    logits_BTV = torch.randn(2, 2, 5, dtype=torch.float64, requires_grad=True)
    targets_BT = torch.tensor([[0, 4], [1, 3]])
    temperature_B = torch.tensor([0.7, 1.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: token_logps(z, targets_BT, temperature_B), (logits_BTV,))


def test_a_token_is_predicted_by_the_position_before_it() -> None:
    assert predictors(3, 6).tolist() == [2, 3, 4]


def test_the_first_token_of_a_row_has_no_predictor() -> None:
    with pytest.raises(ValueError, match="no predictor"):
        predictors(0, 4)
