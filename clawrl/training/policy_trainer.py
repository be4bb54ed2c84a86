"""One optimizer step of the policy, in two phases so that a lease can be fenced in between.

``compute(samples)`` runs forward and backward over the whole batch and says what a step would do; ``apply()`` takes
it, ``discard()`` forgets it. Nothing lasting changes before ``apply()``. A batch from which nothing can be learned, or
whose gradient is not finite, leaves weights and optimizer state bit-identical and is reported with a reason.

``step`` counts applied batches, changed or not: a lease names its step beforehand, so numbers must not repeat. The
method's state moves on with it.

With ``config.lora`` the trainer puts adapters into the model that it is given and trains only those; the model without
them is then the frozen reference, and no second copy is needed.

Every rank is given the same samples in the same order and calls the same methods. Decisions are made from the samples
and from the all-reduced gradient norm only, so that ranks never part ways. `state_dict` with the starting model's
folder restores the trainer bit by bit.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from clawrl.messages import Sample
from clawrl.methods.base import Method, MethodState
from clawrl.training.batch import Row, make_micro_batches
from clawrl.training.config import TrainingConfig
from clawrl.training.forward import PolicyReader
from clawrl.training.lora import Adapters, check_settings
from clawrl.training.model import checkpoint_activations, reshard
from clawrl.training.optimizer import MasterAdamW
from clawrl.training.passes import Passes, Work
from clawrl.training.shards import data_parallel
from clawrl.training.stopwatch import Stopwatch


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
    """``step`` is now behind us. Metrics are means over the passes taken, ``seconds`` this rank's own, by phase."""

    step: int
    changed: bool
    reason: SkipReason | None
    metrics: Mapping[str, float]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Pending:
    work: Work
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
        if method.needs_reference and reference_model is None and config.lora is None:
            raise ValueError(f"method {method.name} compares with a reference model, but there is none")
        self._model = model
        self._method = method
        self._config = config
        self._device = next(model.parameters()).device
        self._adapters = Adapters(model, config.lora, config.seed) if config.lora else None
        self._base_is_reference = method.needs_reference and reference_model is None
        self._parallel = data_parallel(model)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        self._reader = _reader(model, config)
        self.optimizer = MasterAdamW(
            model.named_parameters(),
            learning_rate=config.learning_rate,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            offload=config.offload_optimizer,
        )
        self._watch = Stopwatch(self._device)
        self._passes = Passes(
            self._reader,
            None if reference_model is None else _reader(reference_model, config),
            method,
            self.optimizer,
            self._adapters,
            self._parallel,
            self._watch,
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
        split = self._reader.split(self._config.micro_batch_tokens, self._parallel)
        batches = make_micro_batches(rows, split, self._device)
        several = self._config.updates_per_batch > 1
        with self._watch.phase("forward"):
            before = self._passes.before_updates(batches) if several else [None] * len(batches)
            ref_logps = self._passes.reference_logps(batches)
        work = Work(
            batches=batches,
            before=before,
            ref_logps=ref_logps,
            tokens=sum(int(row.mask.sum()) for row in rows),
            samples=sum(bool(row.mask.any()) for row in rows),
        )
        nothing = StepPlan(step=self.step + 1, skip=SkipReason.ALL_MASKED, metrics={})
        pending = _Pending(work=work, method_state=method_state, norm=0.0, plan=nothing)
        metrics = _batch_metrics(samples, advantages_B, work.tokens)
        # What the method remembered when it made the advantages: with it they can be told afterwards.
        metrics |= {f"method_{name}": float(value) for name, value in self.method_state.items()}
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
            with self._watch.phase("optimizer"):
                changed = self.optimizer.step(pending.norm) or changed
        self.optimizer.zero_grad()
        self.step = pending.plan.step
        self.method_state = pending.method_state
        metrics = {key: float(np.mean([one[key] for one in passes])) for key in pending.plan.metrics}
        return StepResult(step=self.step, changed=changed, reason=reason, metrics=metrics, seconds=self._watch.lap())

    def discard(self) -> None:
        """Forget the computed step: weights, optimizer, method state and step stay as they were before it."""
        self._take_pending()
        self._watch.lap()
        self.optimizer.zero_grad()

    def rewind(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from these whole weights with a fresh optimizer and method state. ``step`` stays: numbers never repeat.

        Adapters that are among them stay adapters; without any, training begins anew with those of the start. Raises
        `ValueError` on every rank, and changes nothing, where that would move the reference: see `Adapters.rewind`.

        A collective: all ranks call it with equal weights.
        """
        reshard(self._model)
        if self._adapters is not None:
            weights = self._adapters.rewind(weights, base_stays=self._base_is_reference)
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

    def _forward_backward(self, pending: _Pending) -> dict[str, float]:
        metrics = self._passes.forward_backward(pending.work)
        pending.norm = metrics["grad_norm"]
        return metrics

    def _take_pending(self) -> _Pending:
        if self._pending is None:
            raise RuntimeError("no step was computed")
        pending, self._pending = self._pending, None
        return pending


def _reader(model: PreTrainedModel, config: TrainingConfig) -> PolicyReader:
    return PolicyReader(
        model,
        block_bytes=config.logits_mb * 2**20,
        share=config.share_prefixes,
        liger=config.head_kernel == "liger",
    )


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
