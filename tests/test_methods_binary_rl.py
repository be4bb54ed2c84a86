import math
from typing import Any

import pytest
import torch

from clawrl.loss import TokenDistribution
from clawrl.methods.base import LossInputs
from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig

torch.set_num_threads(1)


def method(**settings: Any) -> BinaryRL:
    return BinaryRL(BinaryRLConfig(**settings))


def loss_inputs(*, ref: bool) -> LossInputs:
    """Two samples of two and one tokens, with current, old, behaviour and reference log-probs that all differ."""
    return LossInputs(
        logp_BT=torch.tensor([[-0.9, -1.0], [-1.0, -7.0]], dtype=torch.float64),
        old_logp_BT=torch.tensor([[-1.0, -2.0], [-0.5, -1.0]], dtype=torch.float64),
        behaviour_logp_BT=torch.tensor([[-1.2, -3.5], [-0.4, -1.0]], dtype=torch.float64),
        ref_logp_BT=torch.tensor([[-1.1, -1.8], [-0.9, -1.0]], dtype=torch.float64) if ref else None,
        mask_BT=torch.tensor([[True, True], [True, False]]),
        advantage_B=torch.tensor([1.0, -0.5], dtype=torch.float64),
        batch_tokens=3,
        batch_samples=2,
        policy=TokenDistribution.of_logits(torch.zeros(2, 2, 4, dtype=torch.float64), torch.ones(2)),
    )


def test_the_loss_is_the_clipped_objective_times_the_truncated_weight_plus_kl_minus_entropy() -> None:
    settings = {"kl_coef": 0.1, "entropy_coef": 0.5, "tis_clip": 2.0}
    output = method(**settings).loss(loss_inputs(ref=True))

    def kl(d: float) -> float:
        return math.exp(-d) - 1.0 + d

    # Token by token: ratio e^0.1; ratio e^1 clipped at 1.28, weight e^1.5 truncated to 2; ratio e^-0.5 clipped at 0.8.
    policy = [-math.exp(0.1) * math.exp(0.2), -1.28 * 2.0, 0.8 * 0.5 * math.exp(-0.1)]
    kls = [kl(0.2), kl(0.8), kl(-0.1)]
    tokens = [p + 0.1 * k - 0.5 * math.log(4) for p, k in zip(policy, kls, strict=True)]
    assert output.loss.item() == pytest.approx(((tokens[0] + tokens[1]) / 2 + tokens[2]) / 2, rel=1e-6)
    assert output.metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    assert output.metrics["tis_clip_fraction"].item() == pytest.approx(1 / 3)
    assert output.metrics["kl"].item() == pytest.approx(sum(kls) / 3, rel=1e-6)
    assert output.metrics["entropy"].item() == pytest.approx(math.log(4), rel=1e-6)

    by_token = method(aggregation="token_mean", **settings).loss(loss_inputs(ref=True))
    assert by_token.loss.item() == pytest.approx(sum(tokens) / 3, rel=1e-6)


def test_what_was_not_computed_is_not_claimed() -> None:
    assert set(method(kl_coef=0.1).loss(loss_inputs(ref=False)).metrics) == {"clip_fraction", "tis_clip_fraction"}
    assert "kl" not in method(kl_coef=0.0).loss(loss_inputs(ref=True)).metrics
