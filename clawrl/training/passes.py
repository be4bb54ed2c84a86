"""Forward and backward over the micro-batches of one step: gradients into the optimizer, figures out.

Every data-parallel rank sees its part of the batch. What a rank adds to loss, metrics and gradient is a share of the
whole batch's; FSDP averages gradients over its ranks, so each rank's loss counts that many times. All ranks call the
same methods in the same order.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from clawrl.loss import TokenDistribution, kl_estimate, token_mean
from clawrl.methods.base import LossInputs, Method
from clawrl.training.batch import MicroBatch
from clawrl.training.forward import PolicyReader
from clawrl.training.lora import Adapters
from clawrl.training.optimizer import MasterAdamW
from clawrl.training.shards import DataParallel
from clawrl.training.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What one micro-batch's loss knows of the policy before the first update."""

    logp_BT: Tensor
    frozen: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A batch, cut for this rank; ``tokens`` and ``samples`` count what trains in all of it, on every rank."""

    batches: Sequence[MicroBatch]
    before: Sequence[Before | None]
    ref_logps: Sequence[Tensor | None]
    tokens: int
    samples: int

    @property
    def forward_tokens(self) -> int:
        """What goes through the model on this rank."""
        return sum(len(batch.forest.ids_N) for batch in self.batches if not batch.idle)

    @property
    def saved_tokens(self) -> int:
        """What does not, since another sample of the same pass begins with it."""
        whole = sum(len(place) for batch in self.batches if not batch.idle for place in batch.forest.places)
        return whole - self.forward_tokens


class Passes:
    def __init__(
        self,
        reader: PolicyReader,
        reference: PolicyReader | None,
        method: Method,
        optimizer: MasterAdamW,
        adapters: Adapters | None,
        parallel: DataParallel,
        watch: Stopwatch,
    ) -> None:
        """Without a ``reference`` the model with its adapters off is one. ``watch`` is told where the time goes."""
        self._reader, self._reference = reader, reference
        self.method = method
        self._optimizer, self._adapters = optimizer, adapters
        self._parallel = parallel
        self._watch = watch

    @torch.no_grad()
    def before_updates(self, batches: Sequence[MicroBatch]) -> list[Before | None]:
        """For when there is more than one update: before the first, the policy is what its own pass reads."""
        looks = []
        for batch in batches:
            # A rank without work takes part all the same.
            policy = self._reader.read(batch)
            looks.append(None if batch.idle else self._look(policy, batch, policy.logp(batch.targets_BT)))
        return looks

    @torch.no_grad()
    def reference_logps(self, batches: Sequence[MicroBatch]) -> list[Tensor | None]:
        if not self.method.needs_reference:
            return [None] * len(batches)
        reader = self._reference or self._reader
        without_adapters = self._adapters.off() if self._reference is None and self._adapters else nullcontext()
        with without_adapters:
            logps: list[Tensor | None] = [reader.read(batch).logp(batch.targets_BT) for batch in batches]
        if self._reference is not None:
            self._reference.release()
        return logps

    def forward_backward(self, work: Work) -> dict[str, float]:
        """Gradients end up in the optimizer; returns the batch's metrics, their global norm among them."""
        parts: list[Mapping[str, float]] = [
            {"forward_tokens": float(work.forward_tokens), "saved_tokens": float(work.saved_tokens)}
        ]
        for batch, before, ref_BT in zip(work.batches, work.before, work.ref_logps, strict=True):
            with self._watch.phase("forward"):
                policy = self._reader.read(batch)
                logp_BT, entropy_BT = policy.logp_and_entropy(batch.targets_BT)
                if batch.idle:
                    loss = 0.0 * logp_BT.sum()
                else:
                    known = before or self._look(policy, batch, logp_BT.detach())
                    loss, shares = self._loss(work, batch, policy, (logp_BT, entropy_BT), known, ref_BT)
                    parts.append(shares)
            with self._watch.phase("backward"):
                (loss * self._parallel.size).backward()
                self._optimizer.collect()
        with self._watch.phase("backward"):
            return self._gathered(parts)

    def _gathered(self, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
        if self._adapters is not None:
            self._optimizer.average_whole()
        metrics = self._summed(_added(parts))
        metrics["grad_norm"] = self._optimizer.grad_norm()
        return metrics

    def _loss(
        self,
        work: Work,
        batch: MicroBatch,
        policy: TokenDistribution,
        read: tuple[Tensor, Tensor],
        before: Before,
        ref_BT: Tensor | None,
    ) -> tuple[Tensor, dict[str, float]]:
        """``read`` is what was read off ``policy``: log-probs and entropies."""
        logp_BT, entropy_BT = read
        output = self.method.loss(
            LossInputs(
                logp_BT=logp_BT,
                old_logp_BT=before.logp_BT,
                behaviour_logp_BT=batch.behaviour_logp_BT,
                ref_logp_BT=ref_BT,
                mask_BT=batch.mask_BT,
                advantage_B=batch.advantage_B,
                batch_tokens=work.tokens,
                batch_samples=work.samples,
                policy=policy,
                columns=batch.columns,
                frozen=before.frozen,
            )
        )
        old_BT, rollout_BT = before.logp_BT, batch.behaviour_logp_BT
        figures = {
            "train_rollout_logprob_abs_diff": (old_BT - rollout_BT).abs(),
            # The tokens are the engine's: k3 is that of its policy from the trainer's.
            "train_rollout_kl": kl_estimate(rollout_BT, old_BT, "k3"),
            "ppo_kl": old_BT - logp_BT.detach(),
            "entropy": entropy_BT,
        }
        shares = {
            "loss": output.loss.detach(),
            **{name: token_mean(value_BT, batch.mask_BT, work.tokens) for name, value_BT in figures.items()},
            **output.metrics,
        }
        return output.loss, {name: float(share) for name, share in shares.items()}

    @torch.no_grad()
    def _look(self, policy: TokenDistribution, batch: MicroBatch, logp_BT: Tensor) -> Before:
        return Before(logp_BT=logp_BT, frozen=self.method.frozen(policy, batch.columns))

    def _summed(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Over the data-parallel ranks; one that only took part knows none of the names."""
        everyone: list[Mapping[str, float]] = [shares]
        if self._parallel.group is not None:
            everyone = [{}] * self._parallel.size
            dist.all_gather_object(everyone, shares, group=self._parallel.group)
        return _added(everyone)


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for part in parts:
        for name, share in part.items():
            totals[name] = totals.get(name, 0.0) + share
    return totals
