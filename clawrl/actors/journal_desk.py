"""What was served and is not in the ledger: waiting in a journal, or lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clawrl.actors.recording import take_in_orphans
from clawrl.ledger.codec import Codec
from clawrl.messages import Turn

# Replicas whose losses are told apart; of earlier ones the sum is kept.
_TOLD_APART = 1000


class JournalDesk:
    """The coordinator's view of the journals of `clawrl.actors.recording`. ``folder`` is on its own machine."""

    def __init__(self, folder: Path, codec: Codec, record: Callable[[Turn], Awaitable[object]]) -> None:
        self._folder = folder
        self._record = record
        self._codec = codec
        self._lost: dict[str, int] = {}
        self._lost_before = 0
        self._damaged = 0

    async def take_in(self) -> None:
        """Records what dead replicas left behind."""
        self._damaged += await take_in_orphans(self._folder, self._codec, self._record)

    def note(self, replica: str, stats: Mapping[str, Any]) -> None:
        """A replica that dies leaves behind what it had lost by then."""
        if not (lost := int(stats.get("unrecorded", 0))):
            return
        self._lost.pop(replica, None)
        self._lost[replica] = lost
        if len(self._lost) > _TOLD_APART:
            # The one that was silent for longest.
            self._lost_before += self._lost.pop(next(iter(self._lost)))

    def figures(self, replicas: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        return {
            "unrecorded": sum(self._lost.values()) + self._lost_before + self._damaged,
            "journaled": journaled(replicas),
        }


def journaled(replicas: Sequence[Mapping[str, Any]]) -> int:
    """How many answers wait in the journals of these, by what they said last."""
    return sum(int(replica.get("journaled", 0)) for replica in replicas)
