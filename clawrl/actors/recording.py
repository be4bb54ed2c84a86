"""Turns on their way into the ledger: the coordinator may be away for a while, and no client waits for ever."""

from __future__ import annotations

import asyncio
import logging
import time

from clawrl.actors.calls import Background, Coordinator, CoordinatorAway
from clawrl.messages import Turn

log = logging.getLogger(__name__)
_UNAWAITED_TIMEOUT_S = 300.0


class Recorder:
    """A turn that is not on disk within ``ack_timeout_s`` counts as ``unrecorded``, and was served all the same."""

    def __init__(self, coordinator: Coordinator, ack_timeout_s: float) -> None:
        self._coordinator = coordinator
        self._ack_timeout_s = ack_timeout_s
        self._running = Background()
        self.unrecorded = 0

    async def record(self, turn: Turn) -> None:
        """Goes on when whoever awaits it is cancelled: the answer is complete, so leaving now changes nothing."""
        await asyncio.shield(self._running.start(self._record(turn, timeout_s=self._ack_timeout_s)))

    def record_unawaited(self, turn: Turn) -> None:
        """No client waits for this one, so it has more time."""
        self._running.start(self._record(turn, timeout_s=_UNAWAITED_TIMEOUT_S))

    async def finish(self) -> None:
        await self._running.finish(timeout_s=self._ack_timeout_s)

    async def _record(self, turn: Turn, *, timeout_s: float) -> None:
        """Until it is on disk or the time is up; an error of the ledger may pass, so it is asked again, too."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                await self._coordinator.ask("record", turn, timeout_s=max(left, 0.1))
                return
            except Exception as error:
                if isinstance(error, CoordinatorAway) or left < 1.0:
                    self.unrecorded += 1
                    log.error("turn %s was served but not recorded: %r", turn.turn_id, error)
                    return
            await asyncio.sleep(1.0)
