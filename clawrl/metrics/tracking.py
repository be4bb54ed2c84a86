"""Training as TensorBoard and W&B show it: one row of figures a step, read from the ledger.

Whoever tracks asks the coordinator for the steps that it has not written yet, and remembers on disk how far it is: a
restart of anything repeats nothing and leaves nothing out, but for the moment between writing a row and remembering it.
Steps that were undone with a crash and taken again are written again, under the same number. Names are the
catalogue's, slime's where that has one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from clawrl.ledger.store import Ledger
from clawrl.ledger.views import StepRow, StepState
from clawrl.messages import PolicyVersion, TurnState
from clawrl.metrics import catalogue
from clawrl.metrics.following import figure

log = logging.getLogger(__name__)
_MOST_STEPS = 500
_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The newest step that was written."""

    run_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one step; ``at`` is when it was taken."""

    seen: Seen
    at: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    rows: Sequence[Row]


class Writer(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


def progress(ledger: Ledger, seen: Seen | None) -> Progress:
    """Steps since ``seen``, at most the newest `_MOST_STEPS`, oldest first; the ledger's levels are with the newest."""
    new: list[StepRow] = []
    for step in ledger.steps(_MOST_STEPS):
        if seen is not None and (step.run_id, step.step) == (seen.run_id, seen.step):
            break
        if step.state is not StepState.UNDONE:
            new.append(step)
    if not new:
        return Progress(rows=())
    published = [version for version in ledger.versions(_MOST_STEPS) if "transfer_s" in version.stats]
    rows = [_row(step, _before(step.step, published)) for step in reversed(new)]
    counts = ledger.counts()
    levels = {
        catalogue.QUEUE_DEPTH.field: float(counts.by_state.get(TurnState.QUEUED, 0)),
        catalogue.RECORDED.field: float(counts.recorded),
        **{f"{catalogue.TURNS.field}/{state}": float(count) for state, count in counts.by_state.items()},
        **{f"{catalogue.DROPPED.field}/{reason}": float(count) for reason, count in counts.dropped.items()},
    }
    rows[-1] = Row(seen=rows[-1].seen, at=rows[-1].at, figures={**rows[-1].figures, **levels})
    return Progress(rows=rows)


_OF_A_STEP = (*catalogue.STEP_FIGURES, catalogue.STEP_SECONDS)
_OF_A_VERSION = {
    "publish_s": catalogue.PUBLISH_SECONDS.field,
    "bytes": catalogue.VERSION_BYTES.field,
    "hold_ms": "perf/hold_ms",
}


def _before(step: int, newest_first: Sequence[PolicyVersion]) -> Mapping[str, Any]:
    """How the publish before this step went: its own may still be under way, and its time is not in this step's."""
    return next((version.stats for version in newest_first if version.step < step), {})


def _row(step: StepRow, version: Mapping[str, Any]) -> Row:
    found = {metric.field: figure(step.stats, metric.stat) for metric in _OF_A_STEP}
    found |= {name: figure(version, stat) for stat, name in _OF_A_VERSION.items()}
    figures = {name: value for name, value in found.items() if value is not None}
    return Row(
        seen=Seen(run_id=step.run_id, step=step.step), at=step.at, figures={catalogue.STEP.field: step.step, **figures}
    )


class Tracker:
    """``ask`` is the coordinator's `progress`; ``memory`` the file that says how far this is."""

    def __init__(
        self,
        ask: Callable[[Seen | None], Progress],
        writers: Callable[[], Sequence[Writer]],
        memory: Path,
        every_s: float = _EVERY_S,
    ) -> None:
        self._ask = ask
        self._make = writers
        self._writers: Sequence[Writer] | None = None
        self._memory = memory
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Write what is there and close."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def follow(self) -> int:
        """Writes what is new; returns how many rows that were."""
        rows = self._ask(self._seen()).rows
        if rows and self._writers is None:
            self._writers = self._make()
        for row in rows:
            for writer in self._writers or ():
                writer.write(row)
            self._remember(row.seen)
        return len(rows)

    def _run(self) -> None:
        while True:
            ending = self._stopping.wait(self._every_s)
            try:
                self.follow()
            except Exception:
                # A logger that is down costs nobody a step: what is missing is written when it is back.
                log.exception("training is not logged at the moment; it is tried again")
            if ending:
                break
        for writer in self._writers or ():
            writer.close()

    def _seen(self) -> Seen | None:
        try:
            return Seen(**json.loads(self._memory.read_text()))
        except FileNotFoundError:
            return None

    def _remember(self, seen: Seen) -> None:
        aside = self._memory.with_suffix(".new")
        aside.write_text(json.dumps(asdict(seen)))
        os.replace(aside, self._memory)
