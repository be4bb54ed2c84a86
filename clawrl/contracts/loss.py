"""What a loss promises: finite, on the policy only, on unmasked tokens only, and in shares that add up.

The batches are cut and padded by the trainer's own code. Instead of a model there is one table of logits per sample,
the same whichever micro-batch the sample is in, so that gradients of different splits can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clawrl.contracts import examples
from clawrl.contracts.report import Broken, require
from clawrl.loss import TokenDistribution
from clawrl.messages import Sample
from clawrl.methods.base import LossInputs, LossOutput, Method
from clawrl.training.batch import MicroBatch, Row, Split, make_micro_batches

_ONE_PASS = 10_000
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """A whole batch: the sum of its shares, and per sample the gradient of that sum, [R, V].

    ``written`` names the inputs that were changed on the way.
    """

    loss: float
    metrics: Mapping[str, float]
    gradients: Mapping[str, Tensor]
    written: tuple[str, ...]


class LossRig:
    """``loss`` with the masks, columns and memory of ``method``, and the reference model's log-probs if asked for."""

    def __init__(self, loss: Callable[[LossInputs], LossOutput], method: Method, *, reference: bool) -> None:
        self._loss = loss
        self._method = method
        self._reference = reference
        self.samples = examples.samples(method.teacher_top_k, method.teacher_hints)

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        return [
            Row(
                sample=sample,
                mask=self._method.token_mask(sample),
                columns=self._method.columns(sample),
                advantage=sample.reward,
            )
            for sample in samples
        ]

    def run(
        self, samples: Sequence[Sample], micro_batch_tokens: int = _ONE_PASS, *, all_masked: bool = False
    ) -> Summed:
        rows = self.rows(samples)
        logits: dict[str, Tensor] = {sample.turn_id: self._logits(sample, "now").requires_grad_() for sample in samples}
        batches = make_micro_batches(rows, Split(tokens=micro_batch_tokens), torch.device("cpu"))
        tokens = 0 if all_masked else sum(int(row.mask.sum()) for row in rows)
        counted = 0 if all_masked else sum(len(batch.index) for batch in batches)
        total, metrics, written = torch.zeros(()), dict[str, float](), set[str]()
        for batch in batches:
            if all_masked:
                batch = replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
            inputs = self._inputs(batch, [rows[i].sample for i in batch.index], logits, tokens, counted)
            before = {name: tensor.detach().clone() for name, tensor in _tensors(inputs).items()}
            output = self._loss(inputs)
            _check_output(output)
            written |= {name for name, tensor in _tensors(inputs).items() if not torch.equal(tensor, before[name])}
            total = total + output.loss
            for name, share in output.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + float(share)
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        gradients = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in logits.items()}
        return Summed(loss=float(total.detach()), metrics=metrics, gradients=gradients, written=tuple(sorted(written)))

    def _inputs(
        self,
        batch: MicroBatch,
        samples: Sequence[Sample],
        logits: Mapping[str, Tensor],
        tokens: int,
        counted: int,
    ) -> LossInputs:
        policy = self._policy(batch, samples, logits)
        old = self._policy(batch, samples, {sample.turn_id: self._logits(sample, "before") for sample in samples})
        with torch.no_grad():
            frozen = self._method.frozen(old, batch.columns)
        return LossInputs(
            logp_BT=policy.logp(batch.targets_BT),
            old_logp_BT=old.logp(batch.targets_BT),
            behaviour_logp_BT=batch.behaviour_logp_BT,
            ref_logp_BT=old.logp(batch.targets_BT) - 0.1 if self._reference else None,
            mask_BT=batch.mask_BT,
            advantage_B=batch.advantage_B,
            batch_tokens=tokens,
            batch_samples=counted,
            policy=policy,
            columns=batch.columns,
            frozen=frozen,
        )

    def _logits(self, sample: Sample, when: str) -> Tensor:
        """[R, V], a small step apart ``before`` and ``now``."""
        rng = np.random.default_rng(list(sample.turn_id.encode()))
        vocabulary = examples.vocabulary(self._method.teacher_top_k)
        logits = 2.0 * rng.standard_normal((len(sample.response_ids), vocabulary))
        step = 0.2 * rng.standard_normal(logits.shape) if when == "now" else 0.0
        return torch.from_numpy((logits + step).astype(np.float32))

    def _policy(self, batch: MicroBatch, samples: Sequence[Sample], logits: Mapping[str, Tensor]) -> TokenDistribution:
        columns = batch.mask_BT.shape[1]
        rows = []
        for sample in samples:
            padding = (0, 0, 0, columns - len(sample.response_ids))
            rows.append(torch.nn.functional.pad(logits[sample.turn_id], padding))
        return TokenDistribution.of_logits(torch.stack(rows), batch.temperature_B)


def the_loss_and_its_gradient_are_finite(rig: LossRig) -> None:
    for samples in (rig.samples, *([sample] for sample in rig.samples)):
        _check_finite(rig.run(samples))


def the_loss_reaches_the_policy(rig: LossRig) -> None:
    gradients = rig.run(rig.samples).gradients
    require(any(bool(one.any()) for one in gradients.values()), "no example gives any logit a gradient")


def a_batch_without_a_trainable_token_gives_zero(rig: LossRig) -> None:
    summed = rig.run(rig.samples, all_masked=True)
    _check_finite(summed)
    require(summed.loss == 0.0, f"with every token masked the loss is {summed.loss}, not 0")
    moved = [name for name, gradient in summed.gradients.items() if bool(gradient.any())]
    require(not moved, f"with every token masked there is a gradient for {', '.join(moved)}")


def masked_tokens_get_no_gradient(rig: LossRig) -> None:
    summed = rig.run(rig.samples)
    for row in rig.rows(rig.samples):
        masked = summed.gradients[row.sample.turn_id][torch.from_numpy(~row.mask)]
        require(not bool(masked.any()), f"a masked token of sample {row.sample.turn_id} has a gradient")


def shares_of_micro_batches_add_up_to_the_whole(rig: LossRig) -> None:
    """Denominators must be ``batch_tokens`` or ``batch_samples``: a mean over the micro-batch depends on the split."""
    whole = rig.run(rig.samples)
    for samples, limit in ((rig.samples, 1), (rig.samples, 30), (rig.samples[::-1], 45)):
        split = rig.run(samples, limit)
        _check_close("loss", split.loss, whole.loss)
        require(
            split.metrics.keys() == whole.metrics.keys(),
            f"metrics are {sorted(whole.metrics)} for the whole batch and {sorted(split.metrics)} for its parts",
        )
        for name, value in whole.metrics.items():
            _check_close(f"metric {name}", split.metrics[name], value)
        for name, gradient in whole.gradients.items():
            apart = float((split.gradients[name] - gradient).abs().max()) if gradient.numel() else 0.0
            require(apart < _TOLERANCE, f"the gradient for sample {name} changes by {apart:.2g} with the split")


def the_same_inputs_give_the_same_loss_and_stay_as_they_were(rig: LossRig) -> None:
    first, second = rig.run(rig.samples), rig.run(rig.samples)
    require(first.loss == second.loss, f"the same batch gave {first.loss}, then {second.loss}")
    require(not first.written, f"the loss wrote into {', '.join(first.written)}")


LOSS_CHECKS = (
    the_loss_and_its_gradient_are_finite,
    the_loss_reaches_the_policy,
    a_batch_without_a_trainable_token_gives_zero,
    masked_tokens_get_no_gradient,
    shares_of_micro_batches_add_up_to_the_whole,
    the_same_inputs_give_the_same_loss_and_stay_as_they_were,
)


def _tensors(inputs: LossInputs) -> dict[str, Tensor]:
    names = ("logp_BT", "old_logp_BT", "behaviour_logp_BT", "ref_logp_BT", "mask_BT", "advantage_B")
    found: dict[str, Any] = {name: getattr(inputs, name) for name in names}
    found |= {f"columns[{name!r}]": tensor for name, tensor in inputs.columns.items()}
    found |= {f"frozen[{name!r}]": tensor for name, tensor in inputs.frozen.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _check_output(output: Any) -> None:
    require(isinstance(output, LossOutput), f"the loss returned a {type(output).__name__}; return a LossOutput")
    values = {"loss": output.loss, **{f"metric {name}": value for name, value in output.metrics.items()}}
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.ndim:
            raise Broken(f"{name} is {value!r:.80}; make it a tensor without axes")
    held = [name for name, value in output.metrics.items() if value.requires_grad]
    require(not held, f"metric {', '.join(held)} holds on to the graph; detach it")


def _check_finite(summed: Summed) -> None:
    for name, value in (("loss", summed.loss), *summed.metrics.items()):
        require(bool(np.isfinite(value)), f"{name} is {value}")
    for name, gradient in summed.gradients.items():
        require(bool(gradient.isfinite().all()), f"the gradient for sample {name} is not finite")


def _check_close(name: str, one: float, other: float) -> None:
    close = abs(one - other) <= _TOLERANCE * (1.0 + abs(other))
    require(close, f"{name} is {other:.6g} in one pass and {one:.6g} in several")
