"""Where the bytes of a version come from. Plain data: the coordinator passes it on without loading torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where a transfer meets: the sender's store, a name unique to this publish, and how many take part."""

    host: str
    port: int
    name: str
    world: int
    transport: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """The trainer sends buckets; an engine takes part as ``rank`` and, where it has more ranks, those after it."""

    meeting: Rendezvous
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """A snapshot that the engine's machine can read."""

    folder: str


WeightSource = Broadcast | OnDisk
