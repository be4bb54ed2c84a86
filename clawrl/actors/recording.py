"""Turns on their way into the ledger: the coordinator may be away for a while, and no client waits for ever.

A turn that the coordinator has not acknowledged within ``ack_timeout_s`` goes to the journal on this machine's disk,
and from there to the coordinator when it is back: its own process hands it in, or, when that one died, the next
replica on this machine or the coordinator itself (`take_in_orphans`). So it is on a disk before its stream ends, in
any case.
Only a turn that the journal cannot take either is lost, and counted as ``unrecorded``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from clawrl.actors.calls import Background, Coordinator, CoordinatorAway
from clawrl.ledger.codec import Codec
from clawrl.ledger.journal import Journal, orphans
from clawrl.messages import Turn

log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Recorder:
    """``unrecorded`` turns were served and are lost; ``journaled`` ones wait on disk."""

    def __init__(self, coordinator: Coordinator, journal: Journal, ack_timeout_s: float) -> None:
        self._coordinator = coordinator
        self._journal = journal
        self._ack_timeout_s = ack_timeout_s
        self._running = Background()
        self._handing_in: asyncio.Task[None] | None = None
        self.unrecorded = 0

    @property
    def journaled(self) -> int:
        return len(self._journal)

    async def record(self, turn: Turn) -> None:
        """Goes on when whoever awaits it is cancelled: the answer is complete, so leaving now changes nothing."""
        await asyncio.shield(self._running.start(self._record(turn)))

    def record_unawaited(self, turn: Turn) -> None:
        self._running.start(self._record(turn))

    def adopt(self, folder: Path, codec: Codec) -> None:
        """Hands in what dead replicas left on this machine's disk."""

        async def record(turn: Turn) -> None:
            await self._coordinator.ask("record", turn, timeout_s=self._ack_timeout_s)

        async def take_in() -> None:
            self.unrecorded += await take_in_orphans(folder, codec, record)

        self._running.start(take_in())

    async def finish(self) -> None:
        """Sees what it can into the ledger; the rest stays in the journal."""
        if self._handing_in is not None:
            self._handing_in.cancel()
        await self._running.finish(timeout_s=2 * self._ack_timeout_s)
        await self._hand_in_once()
        await asyncio.to_thread(self._journal.close)

    async def _record(self, turn: Turn) -> None:
        """Until it is on disk or the time is up; an error of the ledger may pass, so it is asked again, too."""
        deadline = time.monotonic() + self._ack_timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                await self._coordinator.ask("record", turn, timeout_s=max(left, 0.1))
                return
            except Exception as error:
                if isinstance(error, CoordinatorAway) or left < 1.0:
                    return await self._keep(turn, error)
            await asyncio.sleep(1.0)

    async def _keep(self, turn: Turn, why: Exception) -> None:
        try:
            await asyncio.to_thread(self._journal.append, turn)
        except Exception as error:
            self.unrecorded += 1
            log.error("turn %s was served but not recorded: %r; %r", turn.turn_id, why, error)
            return
        log.warning("turn %s waits in the journal: %r", turn.turn_id, why)
        if self._handing_in is None or self._handing_in.done():
            self._handing_in = asyncio.get_running_loop().create_task(self._hand_in())

    async def _hand_in(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self.journaled:
            await asyncio.sleep(pause_s)
            pause_s = _FIRST_PAUSE_S if await self._hand_in_once() else min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _hand_in_once(self) -> int:
        """How many turns of the journal were recorded; those that the ledger will not have now are asked again."""
        recorded = []
        for turn in await asyncio.to_thread(self._journal.waiting):
            try:
                await self._coordinator.ask("record", turn, timeout_s=self._ack_timeout_s)
            except CoordinatorAway:
                break
            except Exception as error:
                log.error("turn %s stays in the journal: %r", turn.turn_id, error)
            else:
                recorded.append(turn.turn_id)
        if recorded:
            try:
                await asyncio.to_thread(self._journal.handed_in, recorded)
            except OSError as error:
                log.error("the journal keeps turns that are recorded: %r", error)
        return len(recorded)


async def take_in_orphans(folder: Path, codec: Codec, record: Callable[[Turn], Awaitable[object]]) -> int:
    """Records the turns in journals of dead processes of this machine; returns how many could not be read.

    A journal goes when all of it is recorded; until then it comes again.
    """
    files, damaged = orphans(folder, codec), 0
    while (found := await asyncio.to_thread(next, files, None)) is not None:
        path, journal = found
        refused: Exception | None = None
        for turn in journal.turns:
            try:
                await record(turn)
            except Exception as error:
                refused = error
                if isinstance(error, CoordinatorAway):
                    break
        if refused is not None:
            log.error("the journal %s could not be taken in whole yet: %r", path, refused)
            continue
        path.unlink()
        damaged += journal.damaged
        log.warning("took in %s: %d turns, %d damaged", path.name, len(journal.turns), journal.damaged)
    return damaged
