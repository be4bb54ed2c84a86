"""Token sequences that begin alike, laid out so that what they share is there once: a forest of prefix trees.

A `Node` is a run of tokens; what stands before it are the nodes on its path to the root. Sequences are paths. One
forward pass over all nodes, each token attending to its own path alone, gives every sequence what a pass of its own
would give it: turns of one conversation whose prompts extend each other cost little more than the last of them.

Pure numpy. Sequences are int arrays of token ids; nodes are numbered parents first, and their tokens stand one after
the other in that order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.integer]

MIN_SHARED = 16
"""Shorter common beginnings (a few tokens of a chat template) are not worth a node of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """``length`` tokens from ``start`` on in the laid-out order; ``depth`` tokens of other nodes stand before them.

    ``path`` are the nodes from the root to this one, itself included.
    """

    start: int
    length: int
    depth: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """``ids_N`` and ``positions_N`` of all nodes' tokens; ``places[b][t]`` is where token ``t`` of sequence b is."""

    nodes: tuple[Node, ...]
    ids_N: npt.NDArray[np.int64]
    positions_N: npt.NDArray[np.int64]
    places: tuple[npt.NDArray[np.int64], ...]


def shared_prefix(a: TokenArray, b: TokenArray) -> int:
    """How many tokens both begin with; 0 if that is less than `MIN_SHARED`."""
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    shared = int(differing[0]) if len(differing) else n
    return shared if shared >= MIN_SHARED else 0


def in_order(sequences: Sequence[TokenArray]) -> list[int]:
    """Indices in the order of a dictionary, so that those that share most are neighbours."""
    # Big-endian bytes compare as the numbers do.
    return sorted(range(len(sequences)), key=lambda i: (sequences[i].astype(">u4").tobytes(), i))


def plant(sequences: Sequence[TokenArray], *, share: bool = True) -> Forest:
    """The forest of these sequences, none of them empty; without ``share`` each is a tree by itself."""
    roots: list[_Draft] = []
    ends: dict[int, _Draft] = {}
    previous: TokenArray | None = None
    path: list[_Draft] = []
    for i in in_order(sequences):
        sequence = sequences[i]
        shared = shared_prefix(previous, sequence) if share and previous is not None else 0
        path = _branch(roots, path, shared)
        depth = path[-1].end if path else 0
        if depth < len(sequence):
            draft = _Draft(depth, sequence[depth:])
            (path[-1].children if path else roots).append(draft)
            path = [*path, draft]
        ends[i] = path[-1]
        previous = sequence
    return _laid_out(roots, [ends[i] for i in range(len(sequences))])


@dataclass(slots=True, eq=False)
class _Draft:
    """A node while the tree grows."""

    depth: int
    ids: TokenArray
    children: list["_Draft"] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.depth + len(self.ids)


def _branch(roots: list[_Draft], path: list[_Draft], shared: int) -> list[_Draft]:
    """The part of ``path`` along which a sequence goes that shares its first ``shared`` tokens; may split a node."""
    kept = [node for node in path if node.depth < shared]
    if not kept or kept[-1].end <= shared:
        return kept
    parents, node = kept[:-1], kept[-1]
    if shared - node.depth < MIN_SHARED:
        return parents
    upper = _Draft(node.depth, node.ids[: shared - node.depth], [node])
    # The lower half keeps the object: whoever ended at this node ends there.
    node.depth, node.ids = shared, node.ids[shared - node.depth :]
    siblings = parents[-1].children if parents else roots
    siblings[siblings.index(node)] = upper
    return [*parents, upper]


def _laid_out(roots: list[_Draft], ends: Sequence[_Draft]) -> Forest:
    nodes: list[Node] = []
    drafts: list[_Draft] = []
    numbers: dict[int, int] = {}
    waiting: list[tuple[_Draft, tuple[int, ...]]] = [(draft, ()) for draft in reversed(roots)]
    start = 0
    while waiting:
        draft, above = waiting.pop()
        path: tuple[int, ...] = (*above, len(nodes))
        numbers[id(draft)] = len(nodes)
        nodes.append(Node(start=start, length=len(draft.ids), depth=draft.depth, path=path))
        drafts.append(draft)
        start += len(draft.ids)
        waiting += [(child, path) for child in reversed(draft.children)]
    where = [np.arange(node.start, node.start + node.length, dtype=np.int64) for node in nodes]
    return Forest(
        nodes=tuple(nodes),
        ids_N=np.concatenate([draft.ids for draft in drafts]).astype(np.int64),
        positions_N=np.concatenate([np.arange(draft.depth, draft.end, dtype=np.int64) for draft in drafts]),
        places=tuple(np.concatenate([where[i] for i in nodes[numbers[id(end)]].path]) for end in ends),
    )
