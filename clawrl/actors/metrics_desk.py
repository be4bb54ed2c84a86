"""The coordinator's metrics: what the ledger knows, now and then and off the event loop, and what the judge does.

Also what training is logged from elsewhere: `MetricsCalls.progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clawrl.actors.journal_desk import journaled
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import Judgement
from clawrl.metrics.following import Following, look
from clawrl.metrics.judging import tell
from clawrl.metrics.sink import Sink
from clawrl.metrics.tracking import Progress, Seen, progress


class MetricsDesk:
    """``replicas`` and ``guards`` are what the coordinator's status says of them."""

    def __init__(
        self,
        sink: Sink,
        db: LedgerThread,
        replicas: Callable[[], list[dict[str, Any]]],
        guards: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._sink = sink
        self._db = db
        self._replicas = replicas
        self._guards = guards
        self._following = Following()

    async def look(self) -> None:
        seen = await self._db.run(look)
        replicas = self._replicas()
        self._following.tell(self._sink, seen, replicas, self._guards()["figures"], journaled(replicas))

    def judged(self, judgement: Judgement) -> None:
        tell(self._sink, judgement)


class MetricsCalls:
    """A part of the coordinator: how far training has come, for whoever writes it down elsewhere."""

    _db: LedgerThread

    async def progress(self, seen: Seen | None) -> Progress:
        """Every step since ``seen``, oldest first."""
        return await self._db.run(lambda ledger: progress(ledger, seen))
