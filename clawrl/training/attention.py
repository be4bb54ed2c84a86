"""Attention over a forest of token sequences, under the name ``clawrl`` among transformers' implementations.

A model loaded with it and called with ``tree=`` lets each token of a `Forest` attend to its own path alone, node by
node, so that little is computed that a mask would throw away. Without ``tree`` it is ``sdpa``.

No mask of N by N exists. Where the kernel needs one, because layers look through a window or, on a CPU, because tokens
of other nodes stand before a node, the node's tokens are taken `ROWS` at a time, each such block with the keys that it
can see alone. All blocks of all nodes and layers share one mask: seen from the last token and the last key of a block
it is always the same, and a smaller block's is its lower right corner.

transformers hands keyword arguments that it does not know down to the attention function. A model that does not, or
whose layers mix tokens in other ways (linear attention, convolutions), would give wrong numbers without a word:
`clawrl.training.forward` compares at start and does without where they differ.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from clawrl.training.tree import Node

NAME = "clawrl"
ROWS = 512
"""Tokens of a block: enough to keep a kernel busy, and few enough that their mask is small beside a layer's values."""
_NOT_HERE = ("softcap", "s_aux", "position_bias")
"""What some models ask of their attention beside the usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``count`` nodes that stand side by side and are alike: one call for all of them. ``path`` are runs."""

    node: Node
    count: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some tokens of a node and the part of its path that they can see; without a ``mask`` it is a causal triangle."""

    rows: slice
    keys: slice
    mask: Tensor | CausalBias | None


class AttentionTree:
    """A forest's nodes as attention wants them. Masks are made once, for all layers."""

    def __init__(self, nodes: Sequence[Node], device: torch.device) -> None:
        self.runs = _runs(nodes)
        self.lengths = [run.node.length * run.count for run in self.runs]
        self.windowed = False
        """Whether any layer has attended through a window."""
        self._device = device
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def blocks(self, node: Node, window: int | None, dtype: torch.dtype = torch.float32) -> list[Block]:
        """What to compute one by one; together they are the node. ``dtype`` is that of the queries."""
        reach = node.depth + node.length
        if window is not None and window >= reach:
            window = None
        if window is None and (node.depth == 0 or self._device.type == "cuda"):
            # On a GPU a triangle that is flush right is only named: its kernels need no tensor for it.
            plain = None if node.depth == 0 else causal_lower_right(node.length, reach)
            return [Block(rows=slice(0, node.length), keys=slice(0, reach), mask=plain)]
        starts = range(0, node.length, ROWS)
        return [self._block(node, start, min(start + ROWS, node.length), window, dtype) for start in starts]

    def _block(self, node: Node, start: int, end: int, window: int | None, dtype: torch.dtype) -> Block:
        first = 0 if window is None else max(0, node.depth + start - window + 1)
        keys = slice(first, node.depth + end)
        return Block(
            rows=slice(start, end), keys=keys, mask=self._mask(end - start, keys.stop - keys.start, window, dtype)
        )

    def _mask(self, rows: int, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """[rows, keys], a view: the last row is the token of the last key.

        On a CPU 0 where attention is allowed and -inf elsewhere, since of a bool its kernels make such a mask for every
        call, and keep all of them for the backward pass; on a GPU, whose kernels want theirs aligned, true and false.
        """
        kind = self._kind(dtype)
        if (window, kind) not in self._masks:
            tall = min(ROWS, max(run.node.length for run in self.runs))
            reach = max(run.node.depth + run.node.length for run in self.runs)
            wide = reach if window is None else min(reach, window + tall - 1)
            allowed = torch.ones(tall, wide, dtype=torch.bool, device=self._device).tril(wide - tall)
            if window is not None:
                allowed = allowed.triu(wide - tall - window + 1)
            if kind is not torch.bool:
                allowed = torch.zeros(tall, wide, dtype=kind).masked_fill(~allowed, -torch.inf)
            self._masks[window, kind] = allowed
        whole = self._masks[window, kind]
        return whole[len(whole) - rows :, whole.shape[1] - keys :]

    def _kind(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if self._device.type == "cpu" else torch.bool

    @property
    def mask_bytes(self) -> int:
        """What the masks take."""
        return sum(mask.nbytes for mask in self._masks.values())


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: AttentionTree | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """``query`` [1, heads, N, d], ``key`` and ``value`` [1, key/value heads, N, d] -> [1, N, heads, d]."""
    if tree is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    if odd := [name for name in _NOT_HERE if others.get(name) is not None]:
        raise ValueError(f"attention with {odd[0]} cannot run over a tree")
    tree.windowed |= sliding_window is not None
    pieces = [tensor.split(tree.lengths, dim=2) for tensor in (query, key, value)]
    attend = functools.partial(_attend, dropout=dropout, scaling=scaling)
    outputs = []
    for i, run in enumerate(tree.runs):
        queries = _apart(pieces[0][i], run.count)
        keys, values = (_apart(_joined([of_kind[j] for j in run.path], 2), run.count) for of_kind in pieces[1:])
        answers = [
            attend(queries[:, :, block.rows], keys[:, :, block.keys], values[:, :, block.keys], block.mask)
            for block in tree.blocks(run.node, sliding_window, query.dtype)
        ]
        outputs.append(_joined(answers, 2).transpose(1, 2).flatten(0, 1))
    return _joined(outputs, 0)[None].contiguous(), None


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | CausalBias | None,
    *,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    if isinstance(mask, Tensor):
        # Kernels for GPUs take a mask or grouped heads, not both.
        groups = queries.shape[1] // keys.shape[1]
        keys, values = repeat_kv(keys, groups), repeat_kv(values, groups)
    return torch.nn.functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=keys.shape[1] != queries.shape[1],
    )


def _runs(nodes: Sequence[Node]) -> tuple[Run, ...]:
    parents = {i for node in nodes for i in node.path[:-1]}
    alone = [len(node.path) == 1 and i not in parents for i, node in enumerate(nodes)]
    runs: list[Run] = []
    where: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if i and alone[i] and alone[i - 1] and node.length == nodes[i - 1].length:
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
            continue
        where[i] = len(runs)
        runs.append(Run(node=node, count=1, path=tuple(where[j] for j in node.path)))
    return tuple(runs)


def _apart(tensor: Tensor, count: int) -> Tensor:
    """[1, heads, count * L, d] -> [count, heads, L, d], without a copy."""
    return tensor if count == 1 else tensor[0].unflatten(1, (count, -1)).transpose(0, 1)


def _joined(tensors: Sequence[Tensor], dim: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=dim)


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
