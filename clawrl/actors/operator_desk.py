"""What an operator asks of the coordinator: to look at turns, sessions, versions and steps, to roll back, to publish.

Looking goes through the ledger's own thread in bounded pieces, so that a long page lets turns be recorded in between.
Answers are plain JSON; a refusal is a `Refused`, since an error's own type does not survive every way between actors.

A rollback is on disk when it is answered. Replicas take the old weights within a poll, whatever else is going on: a
publish that is not decided is forgotten, and one that is being committed is followed by the rollback. The trainer is
told with its next lease, also while learning is paused. Asked again it is one rollback.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clawrl.actors import rollback
from clawrl.actors.generation import Refused
from clawrl.actors.judging_desk import JudgingDesk
from clawrl.actors.lease_desk import LeaseDesk
from clawrl.actors.trainer_board import TrainerBoard
from clawrl.config import Deployment
from clawrl.inspection.documents import session_document, step_document, turn_document, version_document
from clawrl.inspection.export_page import read_page
from clawrl.inspection.life import life_document
from clawrl.inspection.situation import Situation
from clawrl.ledger.life import TurnLife
from clawrl.ledger.looking import Page, Row, TurnFilter
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.ledger.store import Ledger
from clawrl.ledger.versions import VersionRefused
from clawrl.ledger.views import StepState
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import DropReason, TurnId, TurnState
from clawrl.privacy.keys import KeyStore
from clawrl.serving import errors
from clawrl.weights.kept import is_kept
from clawrl.weights.transaction import Publishing

Document = dict[str, Any]
_PIECE = 250
_EXPORT_PIECE = 50
_VERSIONS_LOOKED_AT = 500
_STEPS_LOOKED_AT = 500


class OperatorDesk:
    """``wake`` has the trainer look for its next order at once."""

    def __init__(
        self,
        deployment: Deployment,
        db: LedgerThread,
        keys: KeyStore,
        judging: JudgingDesk,
        leases: LeaseDesk,
        publishing: Publishing,
        trainer: TrainerBoard,
        wake: Callable[[], None],
    ) -> None:
        self._deployment = deployment
        self._db = db
        self._keys = keys
        self._judging = judging
        self._leases = leases
        self._publishing = publishing
        self._trainer = trainer
        self._wake = wake
        self._publish_now = asyncio.Event()

    # -- looking ------------------------------------------------------------------------------------

    async def turns(self, wanted: TurnFilter, before: int | None, limit: int) -> list[Document]:
        return await self._paged(
            lambda ledger, at, most: ledger.find_turns(wanted, at, most), turn_document, before, limit
        )

    async def export(self, wanted: TurnFilter, before: int | None, limit: int, sealed: bool = False) -> Document:
        """Turns with texts and tokens, as rows of a data set; ``before`` is null when that was all."""
        limit = min(limit, _EXPORT_PIECE)
        page = await self._db.run(
            lambda ledger: read_page(ledger, wanted, before, limit, self._keys if sealed else None)
        )
        return {"rows": await asyncio.to_thread(page.rows), "before": page.before}

    async def turn(self, turn_id: TurnId) -> Document | Refused:
        life = await self._db.run(lambda ledger: ledger.life(turn_id))
        if life is None:
            return Refused(error=errors.unknown_turn(turn_id))
        situation = await self._situation(life)
        # Of tens of thousands of tokens it takes long; pages of rows are 2 ms a piece.
        return await asyncio.to_thread(life_document, life, self._deployment, situation)

    async def sessions(self, before: int | None, limit: int) -> list[Document]:
        return await self._paged(Ledger.recent_sessions, session_document, before, limit)

    async def session(self, name: str, before: int | None, limit: int) -> Document | Refused:
        """The sessions of this name, of one owner or of several, and the newest of their turns."""
        named = await self._db.run(lambda ledger: ledger.sessions_named(name))
        if not named:
            return Refused(error=errors.unknown_session(name))
        turns = await self.turns(TurnFilter(session=name), before, limit)
        return {"session": name, "of": [session_document(row) for row in named], "turns": turns}

    async def versions(self, before: int | None, limit: int) -> list[Document]:
        def look(ledger: Ledger) -> Any:
            current = ledger.current_version()
            rows = ledger.version_rows(before, limit)
            return current, [(row, ledger.step_taken(row.version.step)) for row in rows]

        current, rows = await self._db.run(look)
        # Snapshots may lie on a file system of another machine: not on the event loop, nor on the ledger's thread.
        kept = await asyncio.to_thread(lambda: [is_kept(Path(row.version.snapshot)) for row, _ in rows])
        number = None if current is None else current.version
        return [
            version_document(row, current=number, kept=there, step=step)
            for (row, step), there in zip(rows, kept, strict=True)
        ]

    async def steps(self, before: int | None, limit: int) -> list[Document]:
        return [step_document(row) for row in await self._db.run(lambda ledger: ledger.step_page(before, limit))]

    # -- changing -----------------------------------------------------------------------------------

    async def roll_back(self, number: int) -> Document | Refused:
        try:
            again = await self._db.run(lambda ledger: rollback.to_version(ledger, number))
        except VersionRefused:
            return Refused(error=errors.version_not_kept(number, await self._kept()))
        # A publish that is not decided is too late now, and would be refused; until then it would hold up the replicas.
        await self._publishing.abort_open(f"version {again.version} was rolled back to")
        self._wake()
        return {
            "version": again.version,
            "rolled_back_to": again.stats["rolled_back_to"],
            "rolled_back_from": again.stats.get("rolled_back_from"),
            "step": again.step,
        }

    async def publish(self) -> Document | Refused:
        """Have the trainer publish what it holds without a rest, if that is not what serves."""
        refusal, current, newest = await self._db.run(
            lambda ledger: (rollback.why_not_publish(ledger), ledger.current_version(), _newest_learned(ledger))
        )
        if refusal is not None:
            return Refused(error=errors.conflict(f"nothing may be published now: {refusal}", "publish_refused"))
        made_by = 0 if current is None else int(current.stats.get(REWOUND_AT, current.step))
        new = newest is not None and newest > made_by
        if new:
            self._publish_now.set()
            self._wake()
        return {
            "outcome": "asked" if new else "nothing_new",
            "version": None if current is None else current.version,
            "step": made_by,
            "newest_step": newest,
            "trainer": (await self._trainer.describe())["state"],
        }

    async def rest(self, seconds: float) -> None:
        """The trainer's rest after a publish that failed; it ends when an operator asks to publish."""
        self._publish_now.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._publish_now.wait()
        except TimeoutError:
            return

    # -- what is behind it --------------------------------------------------------------------------

    async def _paged(
        self,
        look: Callable[[Ledger, int | None, int], Page[Row]],
        document: Callable[[Row], Document],
        before: int | None,
        limit: int,
    ) -> list[Document]:
        """Up to ``limit`` rows from ``before`` on; ``look`` is called for a piece at a time."""
        found: list[Document] = []
        while len(found) < limit:
            at, most = before, min(limit - len(found), _PIECE)
            page: Page[Row] = await self._db.run(lambda ledger, at=at, most=most: look(ledger, at, most))  # type: ignore[misc]
            found += [document(row) for row in page.rows]
            before = page.before
            if before is None:
                break
        return found

    async def _kept(self) -> list[int]:
        rows = await self._db.run(lambda ledger: (ledger.version(0), ledger.version_rows(None, _VERSIONS_LOOKED_AT)))
        found = {row.version.version: row.version for row in rows[1]}
        if rows[0] is not None:
            found[0] = rows[0]
        return await asyncio.to_thread(
            lambda: sorted(number for number, version in found.items() if is_kept(Path(version.snapshot)))
        )

    async def _situation(self, life: TurnLife) -> Situation:
        waits = await self._leases.waits() if life.row.state is TurnState.QUEUED else None
        pause, lent, queued, checkpointed = await self._db.run(
            lambda ledger: (ledger.paused(), ledger.lent_step(), ledger.queued(math.inf), ledger.checkpointed_step())
        )
        malformed = life.row.drop_reason is DropReason.MALFORMED and life.text is not None
        return Situation(
            now=time.time(),
            pause=pause,
            waits=waits,
            lent_step=lent,
            queued=queued,
            judging_now=self._judging.has(life.row.turn_id),
            trainer=(await self._trainer.describe())["state"],
            checkpointed_step=checkpointed,
            problem=self._judging.problem_with(life.text) if malformed and life.text is not None else "",
        )


def _newest_learned(ledger: Ledger) -> int | None:
    """The newest step in the trainer's weights that changed them."""
    steps = ledger.step_page(None, _STEPS_LOOKED_AT)
    return next((s.step for s in steps if s.state is not StepState.UNDONE and s.stats.get("changed")), None)
