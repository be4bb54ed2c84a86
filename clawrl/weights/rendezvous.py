"""Where the two ends of a weight transfer meet. Plain data: the coordinator passes it on without loading torch."""

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
