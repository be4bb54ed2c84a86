"""What the trainer and the replicas ask the coordinator about policy versions, apart from publishing one."""

from __future__ import annotations

from clawrl.actors import rollback
from clawrl.actors.operator_desk import OperatorDesk
from clawrl.config import Deployment
from clawrl.ledger.store import Ledger
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import PolicyVersion
from clawrl.weights.transaction import PublishFailed


class VersionCalls:
    """A part of the coordinator."""

    _db: LedgerThread
    _deployment: Deployment
    _operator: OperatorDesk

    async def current_version(self) -> PolicyVersion | None:
        return await self._db.run(lambda ledger: ledger.current_version())

    async def version(self, number: int) -> PolicyVersion | None:
        return await self._db.run(lambda ledger: ledger.version(number))

    async def next_version(self) -> int:
        """Asked before a snapshot is written, so that a publish that may not be is refused before it costs anything."""
        if (refusal := await self._db.run(rollback.why_not_publish)) is not None:
            raise PublishFailed(refusal)
        return await self._db.run(lambda ledger: ledger.next_version())

    async def rest(self, seconds: float) -> None:
        """After a publish that failed; an operator who asks to publish ends it."""
        await self._operator.rest(seconds)

    async def start_version(self, run_id: str, version: PolicyVersion) -> None:
        """The starting weights as version 0, so that there is always something to roll back to."""

        def register(ledger: Ledger) -> None:
            if ledger.is_current(run_id) and ledger.current_version() is None:
                ledger.commit_version(version)

        await self._db.run(register)

    async def snapshots_in_use(self) -> list[str]:
        """Snapshots that must stay on disk: what serves, the newest good ones, the start."""
        teacher = self._deployment.judge.teacher.version
        numbers = {0, teacher} if isinstance(teacher, int) else {0}

        def look(ledger: Ledger) -> list[str]:
            kept = [ledger.current_version(), *ledger.good_versions(), *map(ledger.version, numbers)]
            return [version.snapshot for version in kept if version is not None]

        return await self._db.run(look)

    async def rewound(self, run_id: str, version: int) -> None:
        """The trainer holds the weights of this version again, and its checkpoint says so."""
        await self._db.run(lambda ledger: rollback.rewound(ledger, run_id, version))
