"""The coordinator's judging: every case once at a time, retried, settled in the ledger whatever comes of it.

A case that is under way when the coordinator dies, or that finds the desk full, is owed by the ledger and taken later.
Whether a judged turn makes a sample is the method's word; a turn of which it cannot make one is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from clawrl.judging.config import JudgingConfig
from clawrl.judging.dispatch import judge_or_abstain
from clawrl.ledger.store import Ledger
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import DropReason, Judgement, JudgeRequest, Sample, Turn
from clawrl.methods.base import Method

log = logging.getLogger(__name__)
_BACKLOG = 256
AskJudge = Callable[[JudgeRequest], Awaitable[Judgement]]


class JudgingDesk:
    """``settled`` is called after each case, when the queue may have grown."""

    def __init__(
        self, db: LedgerThread, method: Method, ask: AskJudge, config: JudgingConfig, settled: Callable[[], None]
    ) -> None:
        self._db = db
        self._method = method
        self._ask = ask
        self._config = config
        self._settled = settled
        self._slots = asyncio.Semaphore(config.concurrency)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def take(self, case: JudgeRequest) -> None:
        """Judge a case in the background, once. Beyond the backlog it stays owed in the ledger, not in memory."""
        if case.turn_id not in self._under_way and len(self._under_way) < _BACKLOG:
            task = asyncio.get_running_loop().create_task(self._judge(case))
            self._under_way[case.turn_id] = task
            task.add_done_callback(lambda _: self._under_way.pop(case.turn_id, None))

    async def take_what_is_owed(self) -> None:
        """Cases that a restart, a full backlog or an error left behind."""
        for case in await self._db.run(lambda ledger: ledger.awaiting_judgement(_BACKLOG)):
            self.take(case)

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    def sample_of(self, turn: Turn, judgement: Judgement) -> Sample | DropReason:
        try:
            return self._method.sample(turn, judgement)
        except Exception as error:
            log.warning("turn %s makes no sample: %r", turn.turn_id, error)
            return DropReason.MALFORMED

    async def _judge(self, case: JudgeRequest) -> None:
        try:
            async with self._slots:
                judgement = await judge_or_abstain(self._ask, case, self._config)
            await self._db.run(lambda ledger: ledger.judged(judgement, self._declined(ledger, judgement)))
        except Exception:
            log.exception("turn %s could not be settled; it is taken again", case.turn_id)
            return
        self._settled()

    def _declined(self, ledger: Ledger, judgement: Judgement) -> DropReason | None:
        """Why this judged turn gives no sample; an abstention is dropped by the ledger itself."""
        turn = ledger.turn(judgement.turn_id)
        if turn is None or judgement.verdict is None:
            return None
        made = self.sample_of(turn, judgement)
        return made if isinstance(made, DropReason) else None
