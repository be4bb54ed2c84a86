"""What the demo shows while it runs: a live panel on a terminal, one plain line now and then elsewhere."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clawrl.evaluation.observations import Observations
from clawrl.status_view import number

_RECENT = 16
_PLAIN_EVERY_S = 10.0
_STATES_SHOWN = ("awaiting_next", "judging", "judged", "queued", "leased", "applied", "trained", "dropped")


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """Everything that the display shows, gathered once per refresh."""

    elapsed_s: float
    version: int
    begun: int
    target_sessions: int
    reward: float | None
    accepted_share: float | None
    sessions: int
    answers: int
    failures: int
    by_state: Mapping[str, int] = field(default_factory=dict)
    last_question: str = ""
    last_answer: str = ""


def take_snapshot(seen: Observations, elapsed_s: float, target_sessions: int) -> Snapshot:
    record, status = seen.record, seen.status
    talk = [answer for answer in record.answers if answer.kind == "talk"]
    recent = record.first_answers()[-_RECENT:]
    newest: Mapping[str, Any] = max(status.get("versions") or [], key=lambda row: row["version"], default={})
    stats = newest.get("stats") or {}
    return Snapshot(
        elapsed_s=elapsed_s,
        version=int(status.get("version") or 0),
        begun=record.sessions_begun,
        target_sessions=target_sessions,
        reward=stats.get("reward_mean"),
        accepted_share=sum(answer.accepted for answer in recent) / len(recent) if recent else None,
        sessions=record.sessions_begun - record.sessions_ended,
        answers=len(record.answers),
        failures=len(record.failures),
        by_state=(status.get("turns") or {}).get("by_state") or {},
        last_question=talk[-1].message if talk else "",
        last_answer=talk[-1].text if talk else "",
    )


def plain_line(snapshot: Snapshot) -> str:
    states = " ".join(f"{name}={snapshot.by_state[name]}" for name in _STATES_SHOWN if snapshot.by_state.get(name))
    return (
        f"{snapshot.elapsed_s:5.0f} s  session {snapshot.begun}/{snapshot.target_sessions}  version {snapshot.version}"
        f"  reward {number(snapshot.reward)}  accepted {number(snapshot.accepted_share)}"
        f"  talking {snapshot.sessions}  answers {snapshot.answers}  failed {snapshot.failures}  {states}"
    )


def render(snapshot: Snapshot) -> RenderableType:
    figures = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=snapshot.target_sessions, completed=snapshot.begun, width=40)
    figures.add_row("sessions", f"{snapshot.begun} of {snapshot.target_sessions}", bar)
    figures.add_row("policy version", str(snapshot.version), f"{snapshot.answers} answers so far")
    figures.add_row("reward", number(snapshot.reward), "mean of the last version's batch, by the judge")
    accepted = f"share of the last {_RECENT} first answers, by the user's rule"
    figures.add_row("accepted", number(snapshot.accepted_share), accepted)
    figures.add_row("talking", str(snapshot.sessions), "sessions at this moment")
    figures.add_row("failed", str(snapshot.failures), "requests")
    queue = Table(box=None, pad_edge=False)
    for name in _STATES_SHOWN:
        queue.add_column(name, justify="right")
    queue.add_row(*(str(snapshot.by_state.get(name, 0)) for name in _STATES_SHOWN))
    last = Text(f"user   {_one_line(snapshot.last_question)}\nmodel  {_one_line(snapshot.last_answer)}", style="dim")
    title = f"clawrl demo · {snapshot.elapsed_s:.0f} s"
    return Panel(Group(figures, Text(), queue, Text(), last), title=title)


class Display:
    """A context manager; `show` may be called as often as one likes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._said_at: float | None = None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        if self._live is not None:
            self._live.update(render(snapshot), refresh=True)
        elif self._said_at is None or time.monotonic() - self._said_at >= _PLAIN_EVERY_S:
            self._said_at = time.monotonic()
            self._console.print(plain_line(snapshot), markup=False, highlight=False, soft_wrap=True)


def _one_line(text: str, limit: int = 100) -> str:
    flat = " ⏎ ".join(line.strip() for line in text.strip().splitlines() if line.strip())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
