"""The part of a loss that all methods share: clipped policy gradient, importance weights, KL, entropy, aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from clawrl.methods.base import LossInputs, LossOutput
from clawrl.strict import StrictConfig

if TYPE_CHECKING:
    from torch import Tensor


class LossConfig(StrictConfig):
    eps_clip: float = Field(
        0.2, gt=0.0, lt=1.0, description="how far below 1 the probability ratio may fall before it earns nothing more"
    )
    eps_clip_high: float = Field(0.28, gt=0.0, description="how far above 1 it may rise")
    kl_coef: float = Field(0.0, ge=0.0, description="pull towards the frozen start; above 0 the trainer keeps a copy")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="k1: the log-ratio, k2: half its square, k3: never negative"
    )
    entropy_coef: float = Field(0.0, ge=0.0, description="reward for entropy, per nat")
    aggregation: Literal["token_mean", "sample_mean"] = Field(
        "sample_mean", description="sample_mean: every answer weighs the same; token_mean: every token"
    )


class PolicyLossConfig(LossConfig):
    """With a term on the sampled tokens, whose probability under the engine is known."""

    tis_clip: float = Field(2.0, gt=0.0, description="cap of the train/behaviour probability ratio")


def policy_gradient(
    inputs: LossInputs, advantage_BT: Tensor, config: PolicyLossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO-clipped loss of the sampled tokens, weighted by truncated importance sampling -> ``(loss_BT, shares)``.

    The one place where a sampled token enters a loss as a choice of the engine's, and so the one that is weighted: from
    the policy that sampled it (an older version, or the engine's rounding) to the policy before this update.
    """
    from clawrl.loss import clipped_policy_loss, truncated_importance_weight

    policy_BT, clipped_BT = clipped_policy_loss(
        inputs.logp_BT, inputs.old_logp_BT, advantage_BT, config.eps_clip, config.eps_clip_high
    )
    weight_BT, truncated_BT = truncated_importance_weight(inputs.old_logp_BT, inputs.behaviour_logp_BT, config.tis_clip)
    return weight_BT * policy_BT, {
        "clip_fraction": clipped_BT,
        "tis_clip_fraction": truncated_BT,
        "tis_weight": weight_BT,
    }


def finish(inputs: LossInputs, loss_BT: Tensor, shares: Mapping[str, Tensor], config: LossConfig) -> LossOutput:
    """Adds KL and entropy, and reduces. ``shares`` are per-token figures that become token means."""
    from clawrl.loss import kl_estimate, kl_penalty, sample_mean, token_mean

    shares = dict(shares)
    if inputs.ref_logp_BT is not None and config.kl_coef > 0.0:
        shares["kl"] = kl_estimate(inputs.logp_BT, inputs.ref_logp_BT, config.kl_estimator)
        loss_BT = loss_BT + config.kl_coef * kl_penalty(
            inputs.logp_BT, inputs.old_logp_BT, inputs.ref_logp_BT, config.kl_estimator
        )
    if config.entropy_coef > 0.0:
        shares["entropy"] = entropy_BT = inputs.policy.entropy()
        loss_BT = loss_BT - config.entropy_coef * entropy_BT
    metrics = {
        key: token_mean(value_BT.detach().float(), inputs.mask_BT, inputs.batch_tokens)
        for key, value_BT in shares.items()
    }
    if config.aggregation == "token_mean":
        return LossOutput(loss=token_mean(loss_BT, inputs.mask_BT, inputs.batch_tokens), metrics=metrics)
    return LossOutput(loss=sample_mean(loss_BT, inputs.mask_BT, inputs.batch_samples), metrics=metrics)
