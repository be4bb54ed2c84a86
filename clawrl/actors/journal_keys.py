"""The keys that a replica seals its journal with: lent by the coordinator, held in memory only.

Asked for before the replica serves, since a journal is for when the coordinator is away, and again now and then: the
key of a user who was forgotten is another one afterwards.
"""

from __future__ import annotations

import asyncio
import logging

from clawrl.actors.calls import Coordinator, CoordinatorAway
from clawrl.privacy.keys import LentKeys

log = logging.getLogger(__name__)
_EVERY_S = 5.0


class JournalKeys:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._known = ""
        self._task: asyncio.Task[None] | None = None
        self.lent = LentKeys()

    async def start(self, *, timeout_s: float) -> None:
        """Raises `CoordinatorAway`."""
        await self._fetch(timeout_s)
        self._task = asyncio.get_running_loop().create_task(self._stay_fresh())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _stay_fresh(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._fetch(_EVERY_S)
            except CoordinatorAway:
                continue
            except Exception as error:
                log.warning("the keys of the journal were not renewed: %r", error)

    async def _fetch(self, timeout_s: float) -> None:
        found = await self._coordinator.ask("journal_keys", self._known, timeout_s=timeout_s)
        if found is not None:
            self._known, keys = found
            self.lent.lend(keys)
