"""The coordinator's judging: every case once at a time, retried, settled in the ledger whatever comes of it.

A case is judged, its hints (or hints known from before) are shown to the teacher, and the method says whether that
makes a sample; a turn of which it cannot make one is dropped. A person's feedback on a turn that is being judged takes
the place of the case under way. A case that is under way when the coordinator dies, or that finds the desk full, is
owed by the ledger and taken later.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from clawrl.config import JudgeArgs
from clawrl.judging.dispatch import judge_or_abstain, teach_or_mask
from clawrl.judging.trouble import name_of
from clawrl.ledger.life import TurnText
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import (
    DropReason,
    Judgement,
    JudgeRequest,
    ModelVitals,
    Sample,
    TeacherRequest,
    TeacherTargets,
    Turn,
    VitalsRequest,
)
from clawrl.methods.base import JudgementNeed, Method
from clawrl.plugins import is_dotted

log = logging.getLogger(__name__)
_BACKLOG = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCalls:
    """What the judge's replicas are asked."""

    judge: Callable[[JudgeRequest], Awaitable[Judgement]]
    teach: Callable[[TeacherRequest], Awaitable[TeacherTargets]]
    vitals: Callable[[VitalsRequest], Awaitable[ModelVitals]]


class JudgingDesk:
    """``settled`` is called after each case, when the queue may have grown; ``judged`` with what stands of it."""

    def __init__(
        self,
        db: LedgerThread,
        method: Method,
        calls: JudgeCalls,
        args: JudgeArgs,
        settled: Callable[[], None],
        judged: Callable[[Judgement], None] = lambda judgement: None,
    ) -> None:
        self._db = db
        self._method = method
        self._calls = calls
        self._args = args
        self._settled = settled
        self._judged = judged
        self._wants_turn = is_dotted(args.verdict.kind)
        self._slots = asyncio.Semaphore(args.verdict.concurrency)
        self._teachers = asyncio.Semaphore(args.teacher.concurrency)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def take(self, case: JudgeRequest) -> None:
        """Judge a case in the background, once. Beyond the backlog it stays owed in the ledger, not in memory."""
        known = self._under_way.get(case.turn_id)
        if known is not None:
            if case.feedback is None:
                return
            known.cancel()
        elif len(self._under_way) >= _BACKLOG:
            return
        task = asyncio.get_running_loop().create_task(self._judge(case))
        self._under_way[case.turn_id] = task
        task.add_done_callback(lambda done: self._forget(case.turn_id, done))

    async def take_what_is_owed(self) -> None:
        """Cases that a restart, a full backlog or an error left behind."""
        for case in await self._db.run(lambda ledger: ledger.awaiting_judgement(_BACKLOG)):
            if case.turn_id not in self._under_way:
                self.take(case)

    def has(self, turn_id: str) -> bool:
        """Whether this turn is being judged, and does not only wait for it in the ledger."""
        return turn_id in self._under_way

    def problem_with(self, text: TurnText) -> str:
        """What the method says of a turn that makes no sample; empty if it makes one now."""
        try:
            if text.judgement is not None:
                self._method.sample(text.turn, text.judgement, text.targets)
        except Exception as error:
            return repr(error)
        return ""

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    def sample_of(self, turn: Turn, judgement: Judgement, teacher: TeacherTargets | None) -> Sample | DropReason:
        try:
            return self._method.sample(turn, judgement, teacher)
        except Exception as error:
            log.warning("turn %s makes no sample: %s", turn.turn_id, name_of(error))
            return DropReason.MALFORMED

    def _forget(self, turn_id: str, done: asyncio.Task[None]) -> None:
        if self._under_way.get(turn_id) is done:
            del self._under_way[turn_id]

    async def _judge(self, case: JudgeRequest) -> None:
        try:
            turn = await self._db.run(lambda ledger: ledger.turn(case.turn_id))
            if turn is not None and self._wants_turn:
                case = dataclasses.replace(case, turn=turn)
            async with self._slots:
                judgement = _outranked(
                    await judge_or_abstain(
                        self._calls.judge, case, self._args.verdict, hints_timeout_s=self._args.hints.timeout_s
                    ),
                    case,
                )
            teacher = None if turn is None else await self._taught(turn, judgement)
            made = None if turn is None else self.sample_of(turn, judgement, teacher)
            drop = made if isinstance(made, DropReason) else None
            answered = None if case.feedback is None else case.feedback.given_at
            stands = await self._db.run(lambda ledger: ledger.judged(judgement, drop, teacher, feedback_at=answered))
        except Exception as error:
            log.error("turn %s could not be settled, it is taken again: %s", case.turn_id, name_of(error))
            return
        if stands:
            self._judged(judgement)
        self._settled()

    async def _taught(self, turn: Turn, judgement: Judgement) -> TeacherTargets | None:
        """The hinted teacher's log-probs; ``None`` when nobody asks, there is no hint, or the teacher failed."""
        if JudgementNeed.TEACHER not in self._method.needs:
            return None
        hints = judgement.hints or await self._known_hints(turn)
        if not hints:
            return None
        request = TeacherRequest(
            turn_id=turn.turn_id,
            messages=turn.arrival.messages,
            prompt_ids=turn.prompt_ids,
            response_ids=turn.response_ids,
            temperature=turn.sampling.temperature,
            hints=hints[: self._method.teacher_hints],
            inputs=turn.arrival.inputs,
            reused_ids=turn.reused_ids,
        )
        async with self._teachers:
            return await teach_or_mask(self._calls.teach, request, self._args.teacher)

    async def _known_hints(self, turn: Turn) -> tuple[str, ...]:
        """Hints of earlier turns that also hold for this one, most often confirmed first, by configuration."""
        settings = self._args.hints
        if settings.reuse == "off":
            return ()
        session = turn.session if settings.reuse == "session" else None
        return await self._db.run(lambda ledger: ledger.known_hints(turn.arrival.owner, session, settings.max_hints))


def _outranked(judgement: Judgement, case: JudgeRequest) -> Judgement:
    """A person's score stands even if no judge answered."""
    if case.feedback is None:
        return judgement
    return dataclasses.replace(judgement, verdict=case.feedback.verdict, feedback=case.feedback.score)
