"""What the trainers are given: a batch of samples, as lists of token ids that any interpreter reads.

Three batches of eight samples with as many tokens in each, so that their figures can be compared:

``padded``    all of one length: nothing to gain from packing
``ragged``    lengths from one to eight times the shortest, in no order
``sessions``  a conversation of eight turns: each prompt is the whole conversation so far
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

KINDS = ("padded", "ragged", "sessions")
TURNS = 8
_UNIT = 64
"""Tokens that a turn adds to its conversation, half of them the answer; 36 of them are one batch of eight samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One sample. ``advantage`` counts for each of its response's tokens."""

    prompt: list[int]
    response: list[int]
    advantage: float

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)


def make_pieces(kind: str, vocabulary: int, *, copies: int = 1, seed: int = 0) -> list[Piece]:
    """``copies`` batches of eight, all different, after each other. Token ids from 3 on: the first are special."""
    rng = np.random.default_rng(seed)

    def words(count: int) -> list[int]:
        return [int(word) for word in rng.integers(3, vocabulary, count)]

    shapes: list[tuple[int, int]] = []
    pieces: list[Piece] = []
    for _ in range(copies):
        if kind == "sessions":
            said = words(_UNIT * TURNS)
            for turn in range(TURNS):
                end, half = _UNIT * (turn + 1), _UNIT // 2
                pieces.append(_piece(said[: end - half], said[end - half : end], rng))
            continue
        even = _UNIT * (TURNS + 1) // 4
        lengths = [even] * TURNS if kind == "padded" else [_UNIT // 2 * (turn + 1) for turn in range(TURNS)]
        shapes += [(length, length) for length in lengths]
    for place in rng.permutation(len(shapes)):
        prompt, response = shapes[place]
        pieces.append(_piece(words(prompt), words(response), rng))
    return pieces


def write_pieces(pieces: Sequence[Piece], file: Path) -> None:
    file.write_text(json.dumps([asdict(piece) for piece in pieces]))


def read_pieces(file: Path) -> list[Piece]:
    return [Piece(**piece) for piece in json.loads(file.read_text())]


def _piece(prompt: list[int], response: list[int], rng: np.random.Generator) -> Piece:
    return Piece(prompt=prompt, response=response, advantage=round(float(rng.normal()), 3))
