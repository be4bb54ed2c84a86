"""One optimizer step of the policy, in two phases so that a lease can be fenced in between.

``compute(samples)`` runs forward and backward over the whole batch and says what a step would do; ``apply()`` takes
it, ``discard()`` forgets it. Nothing lasting changes before ``apply()``. A batch from which nothing can be learned, or
whose gradient is not finite, leaves weights and optimizer state bit-identical and is reported with a reason.

``step`` counts applied batches, changed or not: a lease names its step beforehand, so numbers must not repeat. The
method's state moves on with it.

With ``config.lora`` the trainer puts adapters into the model that it is given and trains only those.

Every rank is given the same samples in the same order and calls the same methods. Decisions are made from the samples
and from the all-reduced gradient norm only, so that ranks never part ways. `state_dict` with the starting model's
folder restores the trainer bit by bit.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from clawrl.loss import TokenDistribution, token_mean
from clawrl.messages import Sample
from clawrl.methods.base import LossInputs, Method, MethodState
from clawrl.training.batch import MicroBatch, Row, make_micro_batches
from clawrl.training.config import TrainingConfig
from clawrl.training.lora import Adapters, check_settings
from clawrl.training.model import reshard, response_distribution
from clawrl.training.optimizer import MasterAdamW


class SkipReason(enum.StrEnum):
    """Why a batch changed no weight."""

    ALL_MASKED = "all_masked"
    ZERO_ADVANTAGE = "zero_advantage"
    ZERO_GRADIENT = "zero_gradient"
    NON_FINITE = "non_finite_gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What `PolicyTrainer.apply` would do: take ``step``, and change weights unless ``skip`` says why not."""

    step: int
    skip: SkipReason | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """``step`` is now behind us. Metrics are means over the passes taken."""

    step: int
    changed: bool
    reason: SkipReason | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """What one micro-batch's loss knows of the policy before the first update."""

    logp_BT: Tensor
    frozen: Mapping[str, Tensor]


@dataclass(slots=True, kw_only=True)
class _Pending:
    batches: list[MicroBatch]
    before: list[_Before | None]
    ref_logps: list[Tensor | None]
    tokens: int
    samples: int
    method_state: MethodState
    norm: float
    plan: StepPlan


class PolicyTrainer:
    def __init__(
        self,
        model: PreTrainedModel,
        reference_model: PreTrainedModel | None,
        method: Method,
        config: TrainingConfig,
        method_state: MethodState | None = None,
    ) -> None:
        if method.needs_reference and reference_model is None:
            raise ValueError(f"method {method.name} compares with a reference model, but there is none")
        self._model = model
        self._reference = reference_model
        self._method = method
        self._config = config
        self._device = next(model.parameters()).device
        self._adapters = Adapters(model, config.lora, config.seed) if config.lora else None
        self.optimizer = MasterAdamW(
            model.named_parameters(),
            learning_rate=config.learning_rate,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )
        self._pending: _Pending | None = None
        self.step = 0
        self.method_state: MethodState = method.initial_state() if method_state is None else method_state

    def compute(self, samples: Sequence[Sample]) -> StepPlan:
        """Forward and backward over ``samples``. Must be followed by ``apply`` or ``discard``."""
        if self._pending is not None:
            raise RuntimeError("a computed step waits for apply() or discard()")
        # An earlier attempt may have failed halfway through its micro-batches.
        self.optimizer.zero_grad()
        rows, advantages_B, method_state = self._rows(samples)
        batches = make_micro_batches(rows, self._config.micro_batch_tokens, self._device)
        pending = _Pending(
            batches=batches,
            before=self._before_updates(batches),
            ref_logps=self._reference_logps(batches),
            tokens=sum(int(row.mask.sum()) for row in rows),
            samples=sum(len(batch.index) for batch in batches),
            method_state=method_state,
            norm=0.0,
            plan=StepPlan(step=self.step + 1, skip=SkipReason.ALL_MASKED, metrics={}),
        )
        metrics = _batch_metrics(samples, advantages_B, pending.tokens)
        skip: SkipReason | None = SkipReason.ALL_MASKED
        if batches:
            metrics |= self._forward_backward(pending)
            skip = _skip_reason(pending.norm, learns=bool(np.any(advantages_B)))
        pending.plan = StepPlan(step=self.step + 1, skip=skip, metrics=metrics)
        self._pending = pending
        return pending.plan

    def apply(self) -> StepResult:
        """Take the computed step, and with ``updates_per_batch > 1`` the further passes over the same batch."""
        pending = self._take_pending()
        reason, changed = pending.plan.skip, False
        reshard(self._model)
        passes = [pending.plan.metrics]
        for update in range(self._config.updates_per_batch if reason is None else 0):
            if update > 0:
                passes.append({**pending.plan.metrics, **self._forward_backward(pending)})
                # A later pass may find every ratio clipped; the earlier ones stand.
                if stop := _skip_reason(pending.norm, learns=True):
                    reason = stop if stop is SkipReason.NON_FINITE else None
                    break
            changed = self.optimizer.step(pending.norm) or changed
        self.optimizer.zero_grad()
        self.step = pending.plan.step
        self.method_state = pending.method_state
        metrics = {key: float(np.mean([one[key] for one in passes])) for key in pending.plan.metrics}
        return StepResult(step=self.step, changed=changed, reason=reason, metrics=metrics)

    def discard(self) -> None:
        """Forget the computed step: weights, optimizer, method state and step stay as they were before it."""
        self._take_pending()
        self.optimizer.zero_grad()

    def rewind(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from these whole weights with a fresh optimizer and method state. ``step`` stays: numbers never repeat.

        Adapters that are among them stay adapters; without any, training begins anew with those of the start.

        A collective: all ranks call it with equal weights.
        """
        reshard(self._model)
        if self._adapters is not None:
            weights = self._adapters.rewind(weights)
        self.optimizer.rewind(weights)
        self.method_state = self._method.initial_state()
        self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """This rank's share of everything that training changes; what is trained is inside the optimizer's masters.

        Tensors are live: write them out before the next step.
        """
        if self._pending is not None:
            raise RuntimeError("a computed step waits for apply() or discard()")
        return {
            "step": self.step,
            "method": self._method.name,
            "method_state": dict(self.method_state),
            "optimizer": self.optimizer.state_dict(),
            "lora": self._adapters and self._adapters.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Checkpoints from before there were adapters have no such entry.
        check_settings(self._config.lora, state.get("lora"))
        reshard(self._model)
        if self._adapters is not None:
            self._adapters.load_state_dict(state["lora"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        # Another method's state means nothing to this one; its weights do.
        same = state["method"] == self._method.name
        self.method_state = state["method_state"] if same else self._method.initial_state()
        self._pending = None

    def _rows(self, samples: Sequence[Sample]) -> tuple[list[Row], Any, MethodState]:
        rewards_B = np.array([sample.reward for sample in samples], dtype=np.float64)
        rl_mask_B = np.array([sample.rl_mask for sample in samples], dtype=np.bool_)
        groups_B = [sample.group for sample in samples]
        advantages_B, method_state = self._method.advantages(rewards_B, rl_mask_B, groups_B, self.method_state)
        rows = [
            Row(
                sample=sample,
                mask=self._method.token_mask(sample),
                columns=self._method.columns(sample),
                advantage=float(advantage),
            )
            for sample, advantage in zip(samples, advantages_B, strict=True)
        ]
        return rows, advantages_B, method_state

    @torch.no_grad()
    def _before_updates(self, batches: Sequence[MicroBatch]) -> list[_Before | None]:
        """Only where there is more than one update: before the first, the policy is what its own pass reads."""
        if self._config.updates_per_batch == 1:
            return [None] * len(batches)
        return [self._look(response_distribution(self._model, batch), batch) for batch in batches]

    @torch.no_grad()
    def _look(self, policy: TokenDistribution, batch: MicroBatch) -> _Before:
        return _Before(logp_BT=policy.logp(batch.targets_BT), frozen=self._method.frozen(policy, batch.columns))

    @torch.no_grad()
    def _reference_logps(self, batches: Sequence[MicroBatch]) -> list[Tensor | None]:
        if self._reference is None or not self._method.needs_reference:
            return [None] * len(batches)
        return [response_distribution(self._reference, batch).logp(batch.targets_BT) for batch in batches]

    def _forward_backward(self, pending: _Pending) -> dict[str, float]:
        """One pass: gradients end up in the optimizer, their norm in ``pending``; returns the pass's metrics."""
        totals: dict[str, Tensor] = {}
        for batch, known, ref_BT in zip(pending.batches, pending.before, pending.ref_logps, strict=True):
            policy = response_distribution(self._model, batch)
            before = known or self._look(policy, batch)
            inputs = LossInputs(
                logp_BT=policy.logp(batch.targets_BT),
                old_logp_BT=before.logp_BT,
                behaviour_logp_BT=batch.behaviour_logp_BT,
                ref_logp_BT=ref_BT,
                mask_BT=batch.mask_BT,
                advantage_B=batch.advantage_B,
                batch_tokens=pending.tokens,
                batch_samples=pending.samples,
                policy=policy,
                columns=batch.columns,
                frozen=before.frozen,
            )
            output = self._method.loss(inputs)
            output.loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.collect()
            drift_BT = (inputs.old_logp_BT - batch.behaviour_logp_BT).abs()
            shares = {
                "loss": output.loss.detach(),
                "train_rollout_logprob_abs_diff": token_mean(drift_BT, batch.mask_BT, pending.tokens),
                **output.metrics,
            }
            for key, share in shares.items():
                totals[key] = totals[key] + share if key in totals else share
        if self._adapters is not None:
            self.optimizer.average_whole()
        pending.norm = self.optimizer.grad_norm()
        return {key: float(total) for key, total in totals.items()} | {"grad_norm": pending.norm}

    def _take_pending(self) -> _Pending:
        if self._pending is None:
            raise RuntimeError("no step was computed")
        pending, self._pending = self._pending, None
        return pending


def _skip_reason(norm: float, *, learns: bool) -> SkipReason | None:
    if not np.isfinite(norm):
        return SkipReason.NON_FINITE
    if norm == 0.0:
        return SkipReason.ZERO_GRADIENT if learns else SkipReason.ZERO_ADVANTAGE
    return None


def _batch_metrics(samples: Sequence[Sample], advantages_B: Any, tokens: int) -> dict[str, float]:
    counted = max(len(samples), 1)
    rewarded = [sample.reward for sample in samples if sample.rl_mask]
    return {
        "reward_mean": sum(rewarded) / max(len(rewarded), 1),
        "rewarded": float(len(rewarded)),
        "taught": float(sum(sample.opd_mask for sample in samples)),
        "advantage_std": float(np.std(advantages_B)) if len(samples) else 0.0,
        "response_length_mean": sum(len(sample.response_ids) for sample in samples) / counted,
        "samples": float(len(samples)),
        "tokens": float(tokens),
    }
