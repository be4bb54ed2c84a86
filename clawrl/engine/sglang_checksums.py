"""What SGLang's weights must hash to, once a version's tensors are in its parameters.

SGLang can name a hash of each of its parameters (``weights_checker``), but its parameters are not the tensors of a
checkpoint: several are joined (q, k and v; gate and up), and each rank of a tensor-parallel engine holds a slice. How,
is not documented and differs by model. So it is *learned* from the starting weights, where both sides are known: for
each parameter the ways in which it could be made of tensors are tried until the hash is the one that SGLang names. A
recipe that was found is proven, for a 64-bit hash does not match by chance; a parameter without one is named in
`unexplained`.

The two hashes are SGLang 0.5.23's: the head of a sha256 on a CPU, a mixing sum over 32-bit words on a GPU.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import numpy as np
import torch

from clawrl.weights.manifest import as_bytes

Checksums = Mapping[str, str]
"""Parameter name -> sixteen hexadecimal digits, of one rank."""
_JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_VOCABULARY_PAD = 64
_U32 = np.uint32
_CHUNK_WORDS = 1 << 20
_TILE_WORDS = 8192


class Tensors(Protocol):
    """The tensors of a checkpoint, by name."""

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """A parameter of rank ``rank`` of ``ranks``: these tensors, each cut along ``axis`` (None: whole), then joined.

    ``copies`` ranks have the same share of all tensors but the first: of keys and values, where there are more ranks
    than heads of them.
    """

    names: tuple[str, ...]
    axis: int | None
    rank: int
    ranks: int
    pad: bool = False
    copies: int = 1

    def make(self, tensors: Tensors, dtype: torch.dtype) -> torch.Tensor:
        first, *rest = (tensors.tensor(name).to(dtype) for name in self.names)
        return torch.cat([self._slice(first, 1), *(self._slice(whole, self.copies) for whole in rest)])

    def _slice(self, whole: torch.Tensor, copies: int) -> torch.Tensor:
        if self.pad and len(whole) % _VOCABULARY_PAD:
            missing = _VOCABULARY_PAD - len(whole) % _VOCABULARY_PAD
            whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
        if self.axis is None:
            return whole
        size, parts = whole.shape[self.axis], self.ranks // copies
        if size % parts:
            raise ValueError(f"{size} cannot be cut in {parts}")
        share = size // parts
        return whole.narrow(self.axis, self.rank // copies * share, share)


@dataclass(frozen=True, slots=True)
class Layout:
    """What was learned: a recipe for each parameter of each rank. ``unexplained`` are those without one."""

    recipes: tuple[Mapping[str, Recipe], ...]
    unexplained: tuple[str, ...]
    hash_of: Callable[[torch.Tensor], str]
    dtype: torch.dtype

    @property
    def sources(self) -> set[str]:
        """The tensors of which the parameters are made."""
        return {name for rank in self.recipes for recipe in rank.values() for name in recipe.names}

    def expected(self, tensors: Tensors) -> list[Checksums]:
        """The hashes that these tensors must have, rank by rank; only of parameters with a recipe."""

        def hashed(recipe: Recipe) -> str:
            return self.hash_of(recipe.make(tensors, self.dtype))

        # Hashing gigabytes takes a core a minute for some of them, and lets go of the interpreter's lock.
        with _threads() as threads:
            return [dict(zip(rank, threads.map(hashed, rank.values()), strict=True)) for rank in self.recipes]


def learn(found: Sequence[Checksums], start: Tensors, dtype: torch.dtype) -> Layout:
    """``found`` are SGLang's hashes of the starting weights, rank by rank; ``start`` are these weights."""
    hash_of = next((h for h in (cpu_hash, gpu_hash) if _explains_any(h, found[0], start, dtype)), cpu_hash)
    recipes: list[dict[str, Recipe]] = []
    unexplained: list[str] = []

    def explain(rank: int, name: str, wanted: str) -> Recipe | None:
        tried = _candidates(name, start, rank, len(found))
        return next((one for one in tried if _makes(one, wanted, start, dtype, hash_of)), None)

    with _threads() as threads:
        for rank, checksums in enumerate(found):
            explained = threads.map(explain, repeat(rank), checksums.keys(), checksums.values())
            named = dict(zip(checksums, explained, strict=True))
            recipes.append({name: recipe for name, recipe in named.items() if recipe is not None})
            unexplained += [f"{name} of rank {rank}" for name, recipe in named.items() if recipe is None]
    return Layout(tuple(recipes), tuple(unexplained), hash_of, dtype)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0))), "checksums")


def differing(expected: Sequence[Checksums], found: Sequence[Checksums]) -> list[str]:
    """The parameters whose hash is not what it must be."""
    if len(expected) != len(found):
        return [f"{len(found)} ranks instead of {len(expected)}"]
    return [
        f"{name} of rank {rank}"
        for rank, (wanted, got) in enumerate(zip(expected, found, strict=True))
        for name, value in wanted.items()
        if got.get(name) != value
    ]


def _candidates(name: str, start: Tensors, rank: int, ranks: int) -> Iterator[Recipe]:
    sources: list[tuple[str, ...]] = [(name,)]
    sources += [tuple(name.replace(j, part) for part in parts) for j, parts in _JOINED.items() if j in name]
    if name == "lm_head.weight":
        sources.append(("model.embed_tokens.weight",))
    for names in sources:
        if all(source in start for source in names):
            axes = (None,) if ranks == 1 else (None, 0, 1)
            yield from (Recipe(names, axis, rank, ranks, pad) for pad in (False, True) for axis in axes)
            if "qkv_proj" in name and len(names) > 1:
                divisors = (copies for copies in range(2, ranks + 1) if ranks % copies == 0)
                yield from (Recipe(names, 0, rank, ranks, copies=copies) for copies in divisors)


def _makes(
    recipe: Recipe, wanted: str, start: Tensors, dtype: torch.dtype, hash_of: Callable[[torch.Tensor], str]
) -> bool:
    try:
        return hash_of(recipe.make(start, dtype)) == wanted
    except (ValueError, IndexError, RuntimeError):
        return False  # it cannot be cut or joined so


def _explains_any(
    hash_of: Callable[[torch.Tensor], str], checksums: Checksums, start: Tensors, dtype: torch.dtype
) -> bool:
    """Whether a parameter that every rank holds whole, such as a norm's, has this hash."""
    plain = [name for name in checksums if name in start and start.tensor(name).ndim == 1][:4]
    return any(hash_of(start.tensor(name).to(dtype)) == checksums[name] for name in plain)


def cpu_hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(as_bytes(tensor).numpy().data).hexdigest()[:16]


def gpu_hash(tensor: torch.Tensor) -> str:
    data = as_bytes(tensor).numpy()
    words = np.frombuffer(np.pad(data, (0, -len(data) % 4)).data, dtype=_U32)
    total = 0
    for first in range(0, len(words), _CHUNK_WORDS):
        total += _tile_sums(words[first : first + _CHUNK_WORDS], first, len(words))
    return f"{_finish(total & (2**64 - 1)) if len(words) else 0:016x}"


def _tile_sums(words: np.ndarray, first: int, count: int) -> int:
    place = np.arange(first, first + len(words), dtype=_U32)
    length = _U32((4 * count) & 0xFFFFFFFF)
    halves = []
    seed = 0x243F6A88
    other = ((seed * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF
    for factor, addend, turn in ((0x27D4EB2D, seed, 15), (0x165667B1, other, 13)):
        position = (place * _U32(factor) + _U32(addend)) ^ ((place << _U32(turn)) | (place >> _U32(32 - turn)))
        mixed = _mix(words ^ position)
        tiles = np.add.reduceat(mixed, np.arange(0, len(mixed), _TILE_WORDS), dtype=_U32)
        halves.append(_mix(tiles ^ length).astype(np.uint64))
    return int(((halves[0] << np.uint64(32)) | halves[1]).sum(dtype=np.uint64))


def _mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> _U32(16))
    x = x * _U32(0x85EBCA6B)
    x = x ^ (x >> _U32(13))
    x = x * _U32(0xC2B2AE35)
    mixed: np.ndarray = x ^ (x >> _U32(16))
    return mixed


def _finish(x: int) -> int:
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)
