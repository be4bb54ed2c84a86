"""Binary RL: the judge's verdict on a turn, broadcast over its response.

Reward is -1 or +1; a neutral verdict and an abstention train nothing. The advantage is the reward minus a running
baseline (the exponential average of batch means, as it was *before* this batch). The loss is PPO-clipped, weighted by
truncated importance sampling, plus an optional k3 KL to the frozen start. State: ``{"baseline": float}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from clawrl.messages import DropReason, Judgement, Sample, Turn, Verdict
from clawrl.methods.base import JudgementNeed, LossInputs, LossOutput, MethodState
from clawrl.methods.config import BinaryRLConfig

if TYPE_CHECKING:
    from torch import Tensor


class BinaryRL:
    name = "binary_rl"
    needs = frozenset({JudgementNeed.VERDICT})

    def __init__(self, config: BinaryRLConfig) -> None:
        self._config = config

    @property
    def needs_reference(self) -> bool:
        return self._config.kl_coef > 0.0

    def initial_state(self) -> MethodState:
        return {"baseline": 0.0}

    def sample(self, turn: Turn, judgement: Judgement) -> Sample | DropReason:
        if judgement.turn_id != turn.turn_id:
            raise ValueError(f"judgement of turn {judgement.turn_id} was paired with turn {turn.turn_id}")
        if judgement.verdict is None:
            return DropReason.JUDGE_ABSTAINED
        if judgement.verdict == Verdict.NEUTRAL:
            return DropReason.NEUTRAL
        return Sample(
            turn_id=turn.turn_id,
            prompt_ids=turn.prompt_ids,
            response_ids=turn.response_ids,
            behaviour_logps=turn.response_logps,
            mask=np.ones(turn.response_ids.shape, dtype=np.bool_),
            spans=turn.spans,
            temperature=turn.sampling.temperature,
            reward=float(judgement.verdict),
        )

    def token_mask(self, sample: Sample) -> npt.NDArray[np.bool_]:
        return sample.mask if sample.rl_mask else np.zeros_like(sample.mask)

    def columns(self, sample: Sample) -> Mapping[str, npt.NDArray[np.float32]]:
        return {}

    def advantages(
        self, rewards_B: npt.NDArray[np.float64], rl_mask_B: npt.NDArray[np.bool_], state: MethodState
    ) -> tuple[npt.NDArray[np.float64], MethodState]:
        baseline = state["baseline"] if self._config.baseline == "running" else 0.0
        advantages_B = np.where(rl_mask_B, rewards_B - baseline, 0.0)
        if self._config.baseline == "none" or not rl_mask_B.any():
            return advantages_B, state
        decay = self._config.baseline_decay
        batch_mean = float(rewards_B[rl_mask_B].mean())
        return advantages_B, {"baseline": decay * baseline + (1.0 - decay) * batch_mean}

    def loss(self, inputs: LossInputs) -> LossOutput:
        # Imported here: the coordinator asks for samples only, and a restart must not wait for torch.
        from clawrl.loss import clipped_policy_loss, k3_kl, token_mean, truncated_importance_weight

        config = self._config
        policy_BT, clipped_BT = clipped_policy_loss(
            inputs.logp_BT, inputs.old_logp_BT, inputs.advantage_B[:, None], config.eps_clip, config.eps_clip_high
        )
        weight_BT, truncated_BT = truncated_importance_weight(
            inputs.old_logp_BT, inputs.behaviour_logp_BT, config.tis_clip
        )
        loss_BT = weight_BT * policy_BT
        shares = {"clip_fraction": clipped_BT, "tis_clip_fraction": truncated_BT}
        if inputs.ref_logp_BT is not None:
            shares["kl"] = kl_BT = k3_kl(inputs.logp_BT, inputs.ref_logp_BT)
            loss_BT = loss_BT + config.kl_coef * kl_BT
        metrics = {
            key: token_mean(value_BT.detach().float(), inputs.mask_BT, inputs.batch_tokens)
            for key, value_BT in shares.items()
        }
        return LossOutput(loss=self._aggregate(loss_BT, inputs), metrics=metrics)

    def _aggregate(self, loss_BT: Tensor, inputs: LossInputs) -> Tensor:
        from clawrl.loss import sample_mean, token_mean

        if self._config.aggregation == "token_mean":
            return token_mean(loss_BT, inputs.mask_BT, inputs.batch_tokens)
        return sample_mean(loss_BT, inputs.mask_BT, inputs.batch_samples)
