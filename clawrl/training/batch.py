"""Samples to padded micro-batches.

In: samples, and per sample the mask and columns that the method wants. Out: micro-batches of at most
``micro_batch_tokens`` padded tokens (a longer sample has one to itself; nothing is ever cut). Rows are padded on the
right. The split depends on the samples alone, so every rank makes the same one. Samples without a token to train are
left out; what they would add to a loss is zero.

A micro-batch keeps token columns only for its *window*, positions ``start:L`` of the padded row, where ``start`` is the
shortest prompt in it: column ``t`` of a ``_BT`` array is position ``start + t``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clawrl.messages import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sample with what the method said about it. ``mask`` bool[R]; each of ``columns`` [R, ...]."""

    sample: Sample
    mask: npt.NDArray[np.bool_]
    columns: Mapping[str, npt.NDArray[np.generic]]
    advantage: float

    @property
    def length(self) -> int:
        return len(self.sample.prompt_ids) + len(self.sample.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """``L`` padded row length, ``T = L - start`` window length. ``index[b]`` is the row's place in the batch."""

    index: tuple[int, ...]
    start: int
    ids_BL: Tensor
    attention_mask_BL: Tensor
    position_ids_BL: Tensor
    mask_BT: Tensor
    behaviour_logp_BT: Tensor
    temperature_B: Tensor
    advantage_B: Tensor
    columns: Mapping[str, Tensor]

    @property
    def targets_BT(self) -> Tensor:
        """The tokens of the window, int64."""
        return self.ids_BL[:, self.start :]


def make_micro_batches(rows: Sequence[Row], micro_batch_tokens: int, device: torch.device) -> list[MicroBatch]:
    groups: list[list[int]] = []
    trainable = [i for i, row in enumerate(rows) if row.mask.any()]
    # Longest first: neighbours have similar lengths, and the first member of a group is its padded length.
    for i in sorted(trainable, key=lambda i: (-rows[i].length, i)):
        if groups and rows[groups[-1][0]].length * (len(groups[-1]) + 1) <= micro_batch_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [_pad(tuple(group), [rows[i] for i in group], device) for group in groups]


def _pad(index: tuple[int, ...], rows: Sequence[Row], device: torch.device) -> MicroBatch:
    samples = [row.sample for row in rows]
    for sample in samples:
        if len(sample.prompt_ids) == 0:
            raise ValueError(f"turn {sample.turn_id}: no prompt token, so nothing predicts its first response token")
    length = max(row.length for row in rows)
    start = min(len(sample.prompt_ids) for sample in samples)
    ids_BL = np.zeros((len(rows), length), dtype=np.int64)
    attention_mask_BL = np.zeros((len(rows), length), dtype=np.int64)
    for b, row in enumerate(rows):
        ids_BL[b, : row.length] = np.concatenate([row.sample.prompt_ids, row.sample.response_ids])
        attention_mask_BL[b, : row.length] = 1

    def window(values: Sequence[npt.NDArray[np.generic]]) -> Tensor:
        # Axes after the tokens may be ragged (one row per hint): padded with zeros, too.
        inner = np.max([value.shape[1:] for value in values], axis=0).astype(int)
        padded = np.zeros((len(rows), length - start, *inner), dtype=values[0].dtype)
        for b, value in enumerate(values):
            first = len(samples[b].prompt_ids) - start
            where: Any = (b, slice(first, first + len(value)), *map(slice, value.shape[1:]))
            padded[where] = value
        return torch.from_numpy(padded).to(device)

    return MicroBatch(
        index=index,
        start=start,
        ids_BL=torch.from_numpy(ids_BL).to(device),
        attention_mask_BL=torch.from_numpy(attention_mask_BL).to(device),
        position_ids_BL=torch.arange(length, device=device).repeat(len(rows), 1),
        mask_BT=window([row.mask for row in rows]),
        behaviour_logp_BT=window([sample.behaviour_logps for sample in samples]),
        temperature_B=torch.tensor([sample.temperature for sample in samples], dtype=torch.float32, device=device),
        advantage_B=torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=device),
        columns={name: window([row.columns[name] for row in rows]) for name in rows[0].columns},
    )
