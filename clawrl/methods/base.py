"""What a learning method is: from judged turns to samples, from rewards to advantages, from log-probs to a loss.

The trainer holds one `Method` and never asks which. A method is stateless: what must survive a step (a running
baseline) is a JSON-able `MethodState` that the trainer passes in, keeps and checkpoints. Everything here is a pure
function of its arguments, so every rank computes the same answer. Whether a turn may train at all (greedy, filtered,
aborted, stale) is decided before a method sees it.

A method is a class in a file of its own. It has a ``Config``, a `StrictConfig` whose ``name`` it is chosen by, and is
made as ``Class(config)``. Torch is imported inside `frozen` and `loss` only: the coordinator asks for samples, and its
restart must not wait for torch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn

if TYPE_CHECKING:
    from torch import Tensor

    from clawrl.loss import TokenDistribution

MethodState = Mapping[str, float]
Column = npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.bool_]


class JudgementNeed(enum.StrEnum):
    """What a method asks of the judge."""

    VERDICT = "verdict"
    HINTS = "hints"
    TEACHER = "teacher"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One micro-batch as a loss sees it. Columns are aligned: entry ``[b, t]`` of every ``_BT`` is one token.

    Log-probs are float32 nats at the sampling temperature. ``logp_BT`` and ``policy`` (the whole distribution that it
    was read off) alone carry a gradient. ``old_logp_BT`` is the trainer's value before the first update on this batch;
    ``behaviour_logp_BT`` the engine's. ``batch_tokens`` and ``batch_samples`` count the unmasked tokens, and the
    samples that have one, over the whole batch. ``columns`` holds what `Method.columns` returned, padded with zeros;
    ``frozen`` what `Method.frozen` returned for this micro-batch before the first update.
    """

    logp_BT: Tensor
    old_logp_BT: Tensor
    behaviour_logp_BT: Tensor
    ref_logp_BT: Tensor | None
    mask_BT: Tensor
    advantage_B: Tensor
    batch_tokens: int
    batch_samples: int
    policy: TokenDistribution
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """``loss`` and each metric are this micro-batch's share of the batch: the trainer adds them up."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Method(Protocol):
    Config: Any

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[JudgementNeed]:
        """What the judge is asked for before `sample` runs. The verdict always is: it says how learning goes."""
        ...

    @property
    def teacher_top_k(self) -> int:
        """How many of its best tokens per position the teacher must name; 0 where its log-probs are enough."""
        ...

    @property
    def teacher_hints(self) -> int | None:
        """How many of a turn's hints, shortest first, the teacher is asked about; ``None`` for all."""
        ...

    @property
    def needs_reference(self) -> bool:
        """True when `loss` reads ``ref_logp_BT``, for which the trainer then keeps the frozen starting model."""
        ...

    def initial_state(self) -> MethodState: ...

    def sample(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        """The turn made trainable, or the one reason why it does not train."""
        ...

    def token_mask(self, sample: Sample) -> npt.NDArray[np.bool_]:
        """bool[R]: the response tokens that this method trains. A sample without any is left out of the batch."""
        ...

    def columns(self, sample: Sample) -> Mapping[str, Column]:
        """Further per-token inputs of the loss, [R, ...] by name; the same names, types and widths for every sample."""
        ...

    def advantages(
        self,
        rewards_B: npt.NDArray[np.float64],
        rl_mask_B: npt.NDArray[np.bool_],
        groups_B: Sequence[str | None],
        state: MethodState,
    ) -> tuple[npt.NDArray[np.float64], MethodState]:
        """One advantage per sample of the whole batch (zero where ``rl_mask_B`` is false), and the next state."""
        ...

    def frozen(self, policy: TokenDistribution, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the loss must remember of the policy as it was before the first update; runs without gradients."""
        ...

    def loss(self, inputs: LossInputs) -> LossOutput: ...
