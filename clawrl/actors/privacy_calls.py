"""The coordinator's part in privacy: redaction ahead of the ledger, keys for journals, forgetting, retention.

A part of the coordinator. What a crash interrupts is finished when it is back: rows that were to be forgotten, a key
that was to be deleted. A forgetting is the coordinator's own work, whoever asked for it and went away; one that met
with an error goes on with the next sweep. One at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from clawrl.actors.health_watch import HealthWatch
from clawrl.actors.journal_desk import JournalDesk
from clawrl.config import Deployment
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import Arrival, Turn
from clawrl.privacy.forgetting import Wanted, await_steps, forget, resume
from clawrl.privacy.keys import EVERYBODY, JOURNAL, KeyStore
from clawrl.privacy.redactor import Redactor
from clawrl.serving.auth import owners_of

log = logging.getLogger(__name__)
_DAY_S = 86_400.0
_RETAIN_EVERY_S = 60.0


class PrivacyCalls:
    _deployment: Deployment
    _db: LedgerThread
    _keys: KeyStore
    _redactor: Redactor
    _journals: JournalDesk
    _health: HealthWatch
    _one_forgetting: asyncio.Lock
    _retained_at: float = 0.0

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        raise NotImplementedError

    async def journal_keys(self, known: str) -> tuple[str, dict[str, tuple[bytes, bytes]]] | None:
        """What journals are sealed with, by owner; ``None`` if the replica has it already. Their only use is that."""
        if not self._deployment.privacy.encrypt or self._state_of_keys(self._keys.generation) == known:
            return None

        def lend() -> tuple[str, dict[str, tuple[bytes, bytes]]]:
            # At one moment: who is forgotten meanwhile must not get a new key by this.
            generation, keys = self._keys.of_all([*owners_of(self._deployment.serving), EVERYBODY])
            lent = {owner: (key.id, key.derived(JOURNAL)) for owner, key in keys.items()}
            return self._state_of_keys(generation), lent

        return await asyncio.to_thread(lend)

    async def forget(self, wanted: Wanted) -> dict[str, Any]:
        """Deletes what was said; see `clawrl.ledger.forgetting`. The report names the steps that learned from it."""
        report: dict[str, Any] = await asyncio.shield(self._spawn(self._forget(wanted)))
        # Where nobody is there any more to hear it, who asks again is told.
        await self._db.run(
            lambda ledger: ledger.told_of(owner=wanted.owner, session=wanted.session, turn_id=wanted.turn_id)
        )
        return report

    async def _forget(self, wanted: Wanted) -> dict[str, Any]:
        async with self._one_forgetting:
            # What dead replicas left is of the past, too, and can be read for as long as its key is there.
            await self._journals.take_in()
            try:
                return await await_steps(self._db, forget(wanted, tell=False))
            finally:
                self._health.forget_prompts()

    async def _finish_forgetting(self) -> None:
        """Whatever a crash, or an error, left half done."""
        if self._one_forgetting.locked():
            return
        async with self._one_forgetting:
            report = await await_steps(self._db, resume())
        if report["found"]:
            self._health.forget_prompts()
            log.warning("finished what was being forgotten: %d turns, steps %s", report["turns"], report["steps"])

    async def _scanned(self, turn: Arrival | Turn) -> None:
        """Rules may take their time: not in the ledger's, nor in that of everybody who waits for this process."""
        if self._redactor.on:
            await asyncio.to_thread(self._redactor.warm, turn)

    async def _sweep(self) -> None:
        now = time.time()
        await self._db.run(lambda ledger: ledger.sweep(now))
        while await self._db.run(lambda ledger: ledger.prune()):
            pass
        days = self._deployment.privacy.retention_days
        if days is not None and now - self._retained_at >= _RETAIN_EVERY_S:
            self._retained_at = now
            deleted = 0
            while done := await self._db.run(lambda ledger: ledger.expire_text(now - days * _DAY_S)):
                deleted += done
            if deleted:
                await self._db.run_alone(lambda ledger: ledger.empty_log())
        await self._finish_forgetting()

    def _state_of_keys(self, generation: int) -> str:
        return f"{self._keys.keyring}-{id(self._keys)}-{generation}"
