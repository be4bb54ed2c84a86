"""The keys that a replica seals its journal with: lent by the coordinator, held in memory only.

Asked for before the replica serves, since a journal is for when the coordinator is away, and again now and then: the
key of a user who was forgotten is another one afterwards. The one before is kept while something in the journal may be
sealed with it, and no longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized

from clawrl.actors.calls import Coordinator, CoordinatorAway
from clawrl.privacy.keys import LentKeys
from clawrl.privacy.vault import SealingVault

log = logging.getLogger(__name__)
_EVERY_S = 5.0
_WRITTEN_WITHIN_S = 60.0
"""Far longer than a turn takes from its seal to its place in the journal."""


class JournalKeys:
    """``encrypts`` as in `SealingVault`."""

    def __init__(self, coordinator: Coordinator, *, encrypts: bool = True) -> None:
        self._coordinator = coordinator
        self._known = ""
        self._task: asyncio.Task[None] | None = None
        self._journal: Sized | None = None
        self.lent = LentKeys()
        self.vault = SealingVault(self.lent, encrypts=encrypts)

    async def start(self, *, timeout_s: float) -> None:
        """Raises `CoordinatorAway`."""
        await self._fetch(timeout_s)
        self._task = asyncio.get_running_loop().create_task(self._stay_fresh())

    def used_by(self, journal: Sized) -> None:
        """What is sealed with the keys; while nothing waits in it, no earlier one is needed."""
        self._journal = journal

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _stay_fresh(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self.drop_unneeded()
            try:
                await self._fetch(_EVERY_S)
            except CoordinatorAway:
                continue
            except Exception as error:
                log.warning("the keys of the journal were not renewed: %r", error)

    def drop_unneeded(self) -> None:
        if self._journal is not None and not len(self._journal) and self.lent.drop_earlier(_WRITTEN_WITHIN_S):
            self.vault.forget_ciphers()

    async def _fetch(self, timeout_s: float) -> None:
        found = await self._coordinator.ask("journal_keys", self._known, timeout_s=timeout_s)
        if found is not None:
            self._known, keys = found
            self.lent.lend(keys)
