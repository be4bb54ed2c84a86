"""Samples to micro-batches: what one forward and backward pass reads, and what its loss is told of each token.

In: samples, and per sample the mask and columns that the method wants. Out: for this data-parallel rank the packs of
`clawrl.training.packing`. Tokens go through the model as a forest, shared beginnings once; the loss sees a rectangle:
entry ``[b, t]`` of every ``_BT`` array is response token ``t`` of sample ``b``, padded on the right.

Samples without a token to train are left out; what they would add to a loss is zero. Every rank makes the same plan and
has as many micro-batches as the others; one that is `idle` only takes part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clawrl.messages import Sample
from clawrl.training.packing import plan_packs
from clawrl.training.tree import Forest, plant


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sample with what the method said about it. ``mask`` bool[R]; each of ``columns`` [R, ...]."""

    sample: Sample
    mask: npt.NDArray[np.bool_]
    columns: Mapping[str, npt.NDArray[np.generic]]
    advantage: float

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        return np.concatenate([self.sample.prompt_ids, self.sample.response_ids])


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a batch is cut: tokens in one pass, ranks that share the work, and which of them this is."""

    tokens: int
    share: bool = True
    ranks: int = 1
    rank: int = 0
    pair_cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """``index[b]`` is the row's place in the batch; ``T`` the longest response.

    ``predictor_N`` are the places in the forest of the tokens that predict the unmasked entries, in row-major order of
    ``mask_BT``.
    """

    index: tuple[int, ...]
    forest: Forest
    predictor_N: Tensor
    targets_BT: Tensor
    mask_BT: Tensor
    behaviour_logp_BT: Tensor
    temperature_B: Tensor
    advantage_B: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    idle: bool = False

    @property
    def temperature_N(self) -> Tensor:
        return self.temperature_B.repeat_interleave(self.mask_BT.sum(-1))


def make_micro_batches(rows: Sequence[Row], split: Split, device: torch.device) -> list[MicroBatch]:
    """This rank's passes over the batch."""
    for row in rows:
        if len(row.sample.prompt_ids) == 0:
            raise ValueError(
                f"turn {row.sample.turn_id}: no prompt token, so nothing predicts its first response token"
            )
    trainable = [i for i, row in enumerate(rows) if row.mask.any()]
    if not trainable:
        return []
    plan = plan_packs(
        [rows[i].ids for i in trainable],
        split.tokens,
        ranks=split.ranks,
        share=split.share,
        pair_cost=split.pair_cost,
    )[split.rank]
    return [
        _lay_out(tuple(trainable[i] for i in pack), rows, split.share, device)
        if pack
        else _idle(rows[trainable[0]], device)
        for pack in plan
    ]


def _lay_out(index: tuple[int, ...], all_rows: Sequence[Row], share: bool, device: torch.device) -> MicroBatch:
    rows = [all_rows[i] for i in index]
    samples = [row.sample for row in rows]
    forest = plant([row.ids for row in rows], share=share)
    columns = max(len(sample.response_ids) for sample in samples)
    predictors = []
    for sample, row, place in zip(samples, rows, forest.places, strict=True):
        # Token t is predicted by the token before it.
        before = place[len(sample.prompt_ids) - 1 : -1]
        predictors.append(before[row.mask])

    def rectangle(values: Sequence[npt.NDArray[Any]]) -> Tensor:
        # Axes after the tokens may be ragged (one row per hint): padded with zeros, too.
        inner = np.max([value.shape[1:] for value in values], axis=0).astype(int)
        padded = np.zeros((len(rows), columns, *inner), dtype=values[0].dtype)
        for b, value in enumerate(values):
            where: Any = (b, *map(slice, value.shape))
            padded[where] = value
        return torch.from_numpy(padded).to(device)

    return MicroBatch(
        index=index,
        forest=forest,
        predictor_N=torch.from_numpy(np.concatenate(predictors)).to(device),
        targets_BT=rectangle([sample.response_ids.astype(np.int64) for sample in samples]),
        mask_BT=rectangle([row.mask for row in rows]),
        behaviour_logp_BT=rectangle([sample.behaviour_logps for sample in samples]),
        temperature_B=torch.tensor([sample.temperature for sample in samples], dtype=torch.float32, device=device),
        advantage_B=torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=device),
        columns={name: rectangle([row.columns[name] for row in rows]) for name in rows[0].columns},
    )


def _idle(row: Row, device: torch.device) -> MicroBatch:
    """The shortest pass there is: two tokens, one of them predicted, none of them counted."""
    one = torch.ones(1, 1, device=device)
    return MicroBatch(
        index=(),
        forest=plant([row.ids[:2]], share=False),
        predictor_N=torch.zeros(1, dtype=torch.long, device=device),
        targets_BT=torch.full((1, 1), int(row.ids[1]), device=device),
        mask_BT=one.bool(),
        behaviour_logp_BT=-one,
        temperature_B=one[0],
        advantage_B=0 * one[0],
        idle=True,
    )
