"""The coordinator's watch over what is being served: vitals of every main turn, and an alarm when they go bad.

Length and repetition are read off the turn; one turn in ``probe_every`` is shown to the frozen model, next to the
prompt of an unrelated turn. All of it happens beside recording and never delays it. The panel's memory is a small file
that a restart reads back, so that the baseline stays what the first version did.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from clawrl.guards.alarms import Alarm, AlarmPanel
from clawrl.guards.config import AlarmConfig
from clawrl.guards.repetition import zlib_ratio
from clawrl.judging.trouble import name_of
from clawrl.ledger.store import Ledger
from clawrl.ledger.writer import LedgerThread
from clawrl.messages import FinishReason, ModelVitals, TokenIds, Turn, TurnKind, Vitals, VitalsRequest

log = logging.getLogger(__name__)
_TIMEOUT_S = 60.0
_MOST_WAITING = 32
_REMEMBERED_PROMPTS = 32


class HealthWatch:
    """``ask`` reaches the frozen model. ``freeze`` gets an alarm with the healthy versions, newest first.

    It is awaited until it succeeded once, also after a restart.
    """

    def __init__(
        self,
        db: LedgerThread,
        ask: Callable[[VitalsRequest], Awaitable[ModelVitals]],
        config: AlarmConfig,
        file: Path,
        freeze: Callable[[Alarm, Sequence[int]], Awaitable[None]],
    ) -> None:
        self._db = db
        self._ask = ask
        self._config = config
        self._file = file
        self._freeze = freeze
        self._frozen = False
        self._panel = AlarmPanel(config)
        self._prompts: deque[tuple[str, TokenIds]] = deque(maxlen=_REMEMBERED_PROMPTS)
        self._seen = 0
        self._marked: int | None = None
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        if file.exists():
            self._panel.restore(json.loads(file.read_text()))

    async def freeze_if_alarmed(self) -> None:
        """Called now and then: an alarm that a crash or an error kept from taking effect takes effect now."""
        alarm = self._panel.alarm
        if alarm is not None and not self._frozen:
            await self._freeze(alarm, self._panel.healthy_versions())
            self._frozen = True

    def note(self, turn: Turn) -> None:
        """Take in a recorded turn, in the background. Beyond a backlog turns are left out: they are a sample."""
        if not self._tells_of_the_policy(turn) or len(self._tasks) >= _MOST_WAITING:
            return
        task = asyncio.get_running_loop().create_task(self._observe(turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget_prompts(self) -> None:
        """Somebody's may be among them."""
        self._prompts.clear()

    def resume(self) -> None:
        """The operator goes on: judge by what comes from now on."""
        self._panel.resume()
        self._frozen = False
        self._save()

    def describe(self) -> dict[str, Any]:
        alarm = self._panel.alarm
        return {
            "figures": self._panel.figures(),
            "good_version": self._marked,
            "alarm": None if alarm is None else {"name": alarm.name, "reason": alarm.reason, "version": alarm.version},
        }

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _tells_of_the_policy(self, turn: Turn) -> bool:
        if turn.arrival.kind is not TurnKind.MAIN or not turn.spans:
            return False
        if turn.finish_reason in (FinishReason.ABORTED, FinishReason.ERROR):
            return False
        # A client that asked for a word or two cut this answer short; the policy did not choose to say so little.
        cut_by_client = turn.finish_reason is FinishReason.LENGTH
        return not (cut_by_client and len(turn.response_ids) <= self._config.short_tokens)

    async def _observe(self, turn: Turn) -> None:
        try:
            async with self._one_at_a_time:
                vitals = Vitals(
                    turn_id=turn.turn_id,
                    version=max(span.version for span in turn.spans),
                    response_tokens=len(turn.response_ids),
                    repetition=zlib_ratio(turn.response_text),
                    model=await self._model_vitals(turn),
                )
                await self._db.run(lambda ledger: ledger.note_vitals(vitals))
                self._panel.observe(vitals)
                self._save()
                await self._mark_good()
                await self.freeze_if_alarmed()
        except Exception as error:
            log.error("the vitals of turn %s are missing: %s", turn.turn_id, name_of(error))

    async def _model_vitals(self, turn: Turn) -> ModelVitals | None:
        """``None`` for turns that are not probed, and when the frozen model does not answer."""
        self._seen += 1
        other = next((prompt for session, prompt in reversed(self._prompts) if session != turn.session), None)
        self._prompts.append((turn.session, turn.prompt_ids))
        every = self._config.probe_every
        if not every or self._seen % every or turn.sampling.greedy or other is None:
            return None
        request = VitalsRequest(
            turn_id=turn.turn_id,
            prompt_ids=turn.prompt_ids,
            response_ids=turn.response_ids,
            behaviour_logps=turn.response_logps,
            temperature=turn.sampling.temperature,
            other_prompt_ids=other,
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._ask(request)
        except Exception as error:
            log.warning("the frozen model was not heard on turn %s: %s", turn.turn_id, name_of(error))
            return None

    async def _mark_good(self) -> None:
        good = next(iter(self._panel.healthy_versions()), None)
        if good is None or good == self._marked:
            return

        def mark(ledger: Ledger) -> bool:
            # The start is healthy before the trainer has registered it as version 0.
            known = ledger.version(good) is not None
            if known:
                ledger.mark_good(good)
            return known

        if await self._db.run(mark):
            self._marked = good

    def _save(self) -> None:
        aside = self._file.with_suffix(".new")
        aside.write_text(json.dumps(self._panel.state()))
        os.replace(aside, self._file)
