"""What a chaos run found, as a document and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from clawrl.actors.status import percentile
from tests.chaos.audit import cause_of
from tests.chaos.notes import Outcome
from tests.chaos.plan import Kind
from tests.chaos.run import Result


def document(result: Result) -> dict[str, Any]:
    history, notes = result.history, result.notes
    failed = [note for note in notes if note.outcome is Outcome.FAILED]
    causes = (cause_of(note, result.deaths) for note in failed)
    return {
        "seed": result.seed,
        "seconds": round(result.seconds, 1),
        "kills": {"planned": result.planned, "done": len(result.deaths)} | _counted(d.kind for d in result.deaths),
        "skipped": list(result.skipped),
        "inside_a_broadcast": inside_a_broadcast(result),
        "requests": {"all": len(notes)} | _counted(note.outcome for note in notes),
        "failed_by": _counted("nothing" if death is None else death.kind for death in causes),
        "turns": {"recorded": history.recorded} | _counted(turn.state for turn in history.turns),
        "dropped": _counted(turn.reason for turn in history.turns if turn.reason is not None),
        "versions": len(history.versions),
        "steps": _counted(step.state for step in history.steps),
        "replayed_turns": sum(max(0, _applied(turn) - 1) for turn in history.turns),
        "training_runs": history.runs,
        "recovery_s": _recoveries(result),
        "complaints": list(result.complaints),
    }


def inside_a_broadcast(result: Result) -> int:
    """How many of the deaths meant for it hit a publish: it went on without the dead, or its number was never used."""
    hit = 0
    for death in result.deaths:
        before = [version for version in result.history.versions if version.published_at <= death.at]
        after = [version for version in result.history.versions if version.published_at > death.at]
        if death.kind is Kind.MID_BROADCAST and before and after:
            began = after[0].published_at - float(after[0].stats.get("transfer_s", 0.0))
            hit += began <= death.at or after[0].version > before[-1].version + 1
    return hit


def show(report: Mapping[str, Any], console: Console) -> None:
    for title in ("kills", "requests", "failed_by", "turns", "dropped", "steps"):
        table = Table(title=title, show_header=False, title_justify="left")
        for name, count in report[title].items():
            table.add_row(name, str(count))
        console.print(table)
    table = Table("after the death of", "count", "p50 s", "p95 s", title="recovery", title_justify="left")
    for kind, row in report["recovery_s"].items():
        table.add_row(kind, str(row["count"]), f"{row['p50']:.1f}", f"{row['p95']:.1f}")
    console.print(table)
    console.print(
        f"seed {report['seed']}: {report['kills']['done']} kills in {report['seconds']:.0f} s, {report['versions']} "
        f"versions, {report['training_runs']} training runs, {report['replayed_turns']} turns replayed; "
        f"{report['inside_a_broadcast']} replicas died in the middle of a broadcast"
    )
    for line in [*report["skipped"], *(f"WRONG: {complaint}" for complaint in report["complaints"])]:
        console.print(line, markup=False)


def _recoveries(result: Result) -> dict[str, dict[str, float]]:
    rows = {}
    for kind in Kind:
        seconds = [recovery.seconds for recovery in result.recoveries if recovery.death.kind is kind]
        if seconds:
            rows[str(kind)] = {
                "count": len(seconds),
                "p50": round(percentile(seconds, 50) or 0.0, 2),
                "p95": round(percentile(seconds, 95) or 0.0, 2),
            }
    return rows


def _applied(turn: Any) -> int:
    return sum(move.target == "applied" for move in turn.moves)


def _counted(names: Iterable[Any]) -> dict[str, int]:
    return {str(name): count for name, count in Counter(names).most_common()}
