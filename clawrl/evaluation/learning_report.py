"""The learning bench's table and results, from the files of its runs. Pure functions; the plots are elsewhere.

A cell is the median over seeds with its spread, ``median (least..most)``; a single seed shows its one value. A run in
which the preference never held counts as later than every run in which it did, however early that run ended: it is
shown as ``>N`` after N sessions.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any

from clawrl.evaluation.learning_limits import collapse_problems

Run = Mapping[str, Any]
Group = tuple[str, str]

_COLUMNS: tuple[tuple[str, Callable[[Run], float | None], int], ...] = (
    ("updates", lambda run: run["updates"], 0),
    ("accepted, first 16", lambda run: run["first"]["accepted_share"], 2),
    ("accepted, last 16", lambda run: run["last"]["accepted_share"], 2),
    ("words, last 16", lambda run: run["last"]["mean_words"], 1),
    ("tokens, last 16", lambda run: run["last"]["mean_tokens"], 1),
    ("cut off, last 16", lambda run: run["last"]["truncated_share"], 2),
    ("fluency, first 16", lambda run: run["first"]["fluency"], 2),
    ("fluency, last 16", lambda run: run["last"]["fluency"], 2),
    ("lift, first 16", lambda run: run["first"]["lift"], 2),
    ("lift, last 16", lambda run: run["last"]["lift"], 2),
    ("KL, last 16", lambda run: run["last"]["kl"], 3),
    ("probes known, before", lambda run: run["probes"]["before"]["known_share"], 2),
    ("probes known, after", lambda run: run["probes"]["after"]["known_share"], 2),
    ("probes finished, before", lambda run: run["probes"]["before"]["finished_share"], 2),
    ("probes finished, after", lambda run: run["probes"]["after"]["finished_share"], 2),
    ("probe words, before", lambda run: run["probes"]["before"]["mean_words"], 1),
    ("probe words, after", lambda run: run["probes"]["after"]["mean_words"], 1),
    ("probe fluency, before", lambda run: run["probes"]["before"]["fluency"], 2),
    ("probe fluency, after", lambda run: run["probes"]["after"]["fluency"], 2),
    ("probe lift, after", lambda run: run["probes"]["after"]["lift"], 2),
)
_BOUNDS = (
    "sessions", "least_accepted", "fewest_words", "most_words", "most_truncated", "least_fluency", "least_lift",
    "most_kl",
)  # fmt: skip


def grouped(runs: Sequence[Run]) -> dict[Group, list[Run]]:
    """By preference and method, as they came; each group in the order of its seeds."""
    found: dict[Group, list[Run]] = {}
    for run in runs:
        found.setdefault((run["plan"]["preference"], run["plan"]["method"]), []).append(run)
    return {group: sorted(members, key=lambda run: run["plan"]["seed"]) for group, members in found.items()}


def spread(values: Sequence[float | None], digits: int) -> str:
    """``median (least..most)`` of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{median(known):.{digits}f}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.{digits}f}..{max(known):.{digits}f})"


def until_held(runs: Sequence[Run]) -> str:
    """Sessions until the preference held in three first answers in a row; among never and never, fewer sessions first.

    Between a count and a never, and between two of the latter, there is no middle: then the median is the first never.
    """
    held = sorted(run["sessions_until_held"] for run in runs if run["sessions_until_held"] is not None)
    never = sorted(run["sessions"] for run in runs if run["sessions_until_held"] is None)
    ranked = [*map(str, held), *(f">{sessions}" for sessions in never)]
    upper = len(ranked) // 2
    if upper < len(held):
        middle = f"{median([*held, *(inf for _ in never)]):.0f}"
    else:
        middle = ranked[max(len(held), (len(ranked) - 1) // 2)]
    text = middle if len(ranked) == 1 else f"{middle} ({ranked[0]}..{ranked[-1]})"
    return f"{text}; never in {len(never)} of {len(runs)}" if never else text


def sessions_seen(runs: Sequence[Run]) -> str:
    """One number, or the range where the runs of a cell are not equally long."""
    seen = sorted(run["sessions"] for run in runs)
    return str(seen[0]) if seen[0] == seen[-1] else f"{seen[0]} to {seen[-1]}, unequal"


def table(runs: Sequence[Run], failed: Mapping[str, str]) -> str:
    """Markdown: one table a preference, one row a method; then what endured past holding, and what went wrong."""
    groups = grouped([run for run in runs if not run["plan"]["past"]])
    parts = ["# How the methods learn\n"]
    for preference in dict.fromkeys(preference for preference, _ in groups):
        header = ["method", "seeds", "sessions", "sessions until held", *(name for name, _, _ in _COLUMNS)]
        rows = [
            [method, str(len(members)), sessions_seen(members), until_held(members)]
            + [spread([read(run) for run in members], digits) for _, read, digits in _COLUMNS]
            for (wanted, method), members in groups.items()
            if wanted == preference
        ]
        parts.append(f"## {preference}\n\n{_markdown(header, rows)}")
    parts += _past(grouped([run for run in runs if run["plan"]["past"]]))
    notes = [
        f"- {_title(run)}: an alarm paused training: {run['stopped_by']}"
        for run in runs
        if run["stopped_by"] and not run["plan"]["past"]
    ]
    notes += [f"- {_title(run)}: {len(run['failures'])} failed requests" for run in runs if run["failures"]]
    notes += [f"- {_title(run)}: ended by {run['ended']}" for run in runs if run["ended"] == "time limit"]
    notes += [f"- {_title(run)}, past holding: {problem}" for run in runs for problem in collapse_problems(run)]
    notes += [f"- {name} FAILED: {why}" for name, why in failed.items()]
    if notes:
        parts.append("## What went wrong\n\n" + "\n".join(notes) + "\n")
    return "\n".join(parts)


def results(runs: Sequence[Run], failed: Mapping[str, str]) -> dict[str, Any]:
    return {"runs": list(runs), "failed": dict(failed)}


def _past(groups: Mapping[Group, Sequence[Run]]) -> list[str]:
    if not groups:
        return []
    rows = []
    for (preference, method), members in groups.items():
        held = [run["after_held"] or {} for run in members]
        bounds = [spread([one.get(name) for one in held], 2) for name in _BOUNDS]
        ended = "; ".join(dict.fromkeys(run["ended"] for run in members))
        collapsed = sum(bool(collapse_problems(run)) for run in members)
        verdict = f"{collapsed} of {len(members)} COLLAPSED" if collapsed else "sound"
        applied = spread([run["updates_past_held"] for run in members], 0)
        rows.append([preference, method, until_held(members), applied, *bounds, ended, verdict])
    named = [name.replace("_", " ") for name in _BOUNDS]
    header = ["preference", "method", "sessions until held", "updates past holding", *named, "ended", "verdict"]
    return [f"## Past the moment from which the preference held\n\n{_markdown(header, rows)}"]


def _title(run: Run) -> str:
    plan = run["plan"]
    return f"{plan['method']}, {plan['preference']}, seed {plan['seed']}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
