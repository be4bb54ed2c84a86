"""What `clawrl status` shows: the server's status object as Rich renderables. No I/O, no arithmetic on promises."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_STATES = ("served", "awaiting_next", "judging", "judged", "queued", "leased", "applied", "trained", "dropped")
_VERSIONS_SHOWN = 8
_FIGURES = (
    ("reward", "reward_mean", 2), ("loss", "loss", 4), ("kl", "kl", 4), ("grad norm", "grad_norm", 3),
    ("saved tokens", "saved_tokens", 0), ("hold ms", "hold_ms", 1), ("publish s", "publish_s", 2),
)  # fmt: skip
"""Title, name among a version's figures, digits."""


def render_status(status: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_headline(status), _turns(status.get("turns") or {}, status)]
    if status.get("versions"):
        parts.append(_versions(status["versions"]))
    if status.get("replicas"):
        parts.append(_replicas(status["replicas"]))
    if (status.get("guards") or {}).get("figures"):
        parts.append(_guards(status["guards"]))
    if (status.get("staleness") or {}).get("lag"):
        parts.append(_staleness(status["staleness"]))
    parts.append(_workers(status))
    return Panel(Group(*parts), title=f"clawrl · {status.get('name', '?')}", expand=False)


def number(value: Any, digits: int = 2) -> str:
    """A figure for people: a dash where there is none."""
    if value is None or isinstance(value, bool):
        return "-" if value is None else str(value)
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _headline(status: Mapping[str, Any]) -> Text:
    text = Text.assemble(("policy version ", "dim"), (str(status.get("version", "?")), "bold cyan"))
    text.append(f"   step {status.get('step', '?')}   sessions {(status.get('sessions') or {}).get('active', '?')}   ")
    if status.get("paused"):
        text.append(f"PAUSED: {status.get('pause_reason') or 'no reason given'}", style="bold yellow")
    else:
        text.append("learning", style="green")
    return text


def _turns(turns: Mapping[str, Any], status: Mapping[str, Any]) -> Group:
    table = Table(title="turns", title_justify="left", box=None, pad_edge=False)
    by_state: Mapping[str, int] = turns.get("by_state") or {}
    states = [state for state in _STATES if by_state.get(state)] + sorted(set(by_state) - set(_STATES))
    table.add_column("recorded")
    for state in states:
        table.add_column(state, justify="right")
    table.add_row(str(turns.get("recorded", 0)), *(str(by_state[state]) for state in states))
    notes: list[Text] = []
    if turns.get("dropped"):
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(turns["dropped"].items()))
        notes.append(Text(f"dropped: {reasons}", style="dim"))
    if turns.get("adds_up") is False:
        notes.append(Text("the counts do not add up", style="bold red"))
    if unrecorded := status.get("unrecorded", 0):
        notes.append(Text(f"{unrecorded} answers could not be recorded", style="bold red"))
    if journaled := status.get("journaled", 0):
        notes.append(Text(f"{journaled} answers wait in journals for the coordinator", style="yellow"))
    return Group(table, *notes)


def _versions(versions: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="latest versions", title_justify="left", box=None, pad_edge=False)
    for name in ("version", "step", "published", *(title for title, _, _ in _FIGURES)):
        table.add_column(name, justify="right")
    for row in sorted(versions, key=lambda row: row["version"], reverse=True)[:_VERSIONS_SHOWN]:
        stats: Mapping[str, Any] = row.get("stats") or {}
        when = row.get("published_at")
        clock = datetime.fromtimestamp(when).strftime("%H:%M:%S") if when else "-"
        figures = [number(stats.get(name), digits) for _, name, digits in _FIGURES]
        table.add_row(str(row.get("version")), str(row.get("step")), clock, *figures)
    return table


def _guards(guards: Mapping[str, Any]) -> Group:
    """Recent figures beside those of the first turns, and the alarm if there is one."""
    table = Table(title="health of recent answers", title_justify="left", box=None, pad_edge=False)
    figures: Mapping[str, Any] = guards["figures"]
    names = [name for name in figures if not name.startswith("baseline_")]
    for name in ("", *(name.replace("_", " ") for name in names)):
        table.add_column(name, justify="right")
    table.add_row("now", *(number(figures[name]) for name in names))
    table.add_row("at the start", *(number(figures.get(f"baseline_{name}")) for name in names))
    alarm = guards.get("alarm")
    good = guards.get("good_version")
    notes = [Text(f"last good version: {'-' if good is None else good}", style="dim")]
    if alarm:
        notes.append(Text(f"ALARM {alarm['name']}: {alarm['reason']}", style="bold red"))
    return Group(table, *notes)


def _staleness(staleness: Mapping[str, Any]) -> Group:
    """How many of the recent samples were how many optimizer steps old."""
    table = Table(title="age of trained samples", title_justify="left", box=None, pad_edge=False)
    lags: Mapping[str, int] = staleness["lag"]
    table.add_column("optimizer steps behind")
    for lag in lags:
        table.add_column(lag, justify="right")
    table.add_row("samples", *(str(count) for count in lags.values()))
    limit, dropped = staleness.get("limit", "?"), staleness.get("dropped", 0)
    return Group(
        table, Text(f"over {staleness.get('of_steps', 0)} steps; {dropped} dropped beyond {limit}", style="dim")
    )


def _replicas(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="policy replicas", title_justify="left", box=None, pad_edge=False)
    for name in ("replica", "version", "running", "waiting"):
        table.add_column(name, justify="left" if name == "replica" else "right")
    for row in replicas:
        table.add_row(*(str(row.get(name, "-")) for name in ("replica", "version", "running", "waiting")))
    return table


def _workers(status: Mapping[str, Any]) -> Text:
    judge: Mapping[str, Any] = status.get("judge") or {}
    holds: Mapping[str, Any] = status.get("holds_ms") or {}
    trainer: Mapping[str, Any] = status.get("trainer") or {}
    return Text(
        f"judge    {judge.get('judged', 0)} judged, {judge.get('abstained', 0)} abstained, "
        f"{number(judge.get('mean_seconds'))} s each\n"
        f"trainer  {trainer.get('state', 'unknown')}{', waits ' + trainer['waits'] if trainer.get('waits') else ''}\n"
        f"holds    p50 {number(holds.get('p50'), 1)} ms, p95 {number(holds.get('p95'), 1)} ms "
        f"over {holds.get('count', 0)}"
    )
