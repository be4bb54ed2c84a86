"""What an answer is made of, in the order in which it was written; see `clawrl.serving.pieces` for the rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Part of the ``index``-th tool call. ``id`` and ``name`` are in its first part only, which has no arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Part = Text | Reasoning | Call
