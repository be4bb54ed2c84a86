"""The learning bench's pictures, two a preference: what was accepted over the sessions, and health over the versions.

A line is the median over seeds, the band around it reaches from the least to the most.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from clawrl.evaluation.learning_report import Run

_HEALTH = {
    "fluency": "fluency (nats per token, by the starting model)",
    "lift": "on-topic lift (nats per token)",
    "mean_words": "mean length in words",
    "kl": "KL to the starting model (nats per token)",
}


def write_plots(runs: Sequence[Run], folder: Path) -> None:
    for preference in dict.fromkeys(run["plan"]["preference"] for run in runs):
        chosen: dict[str, list[Run]] = {}
        for run in (run for run in runs if run["plan"]["preference"] == preference):
            past = run["plan"]["past"]
            label = run["plan"]["method"] + (f", {past} updates past holding" if past else "")
            chosen.setdefault(label, []).append(run)
        _accepted(preference, chosen, folder / f"accepted-{preference}.png")
        _health(preference, chosen, folder / f"health-{preference}.png")


def _accepted(preference: str, chosen: Mapping[str, Sequence[Run]], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    try:
        for method, members in chosen.items():
            points = [_points(run["blocks"], _block_end, "accepted_share") for run in members]
            _band(axes, method, points)
        axes.set_ylim(-0.05, 1.05)
        axes.set_xlabel("sessions")
        axes.set_ylabel("accepted share of first answers")
        _finish(axes, f"{preference}: accepted by the user's rule")
        figure.savefig(file, dpi=120)
    finally:
        plt.close(figure)


def _health(preference: str, chosen: Mapping[str, Sequence[Run]], file: Path) -> None:
    figure, panels = plt.subplots(len(_HEALTH), 1, sharex=True, figsize=(8, 11), layout="constrained")
    try:
        for axes, (name, title) in zip(panels, _HEALTH.items(), strict=True):
            for method, members in chosen.items():
                _band(axes, method, [_points(run["by_version"], lambda row: row["version"], name) for run in members])
            _finish(axes, f"{preference}: {title}")
        panels[-1].set_xlabel("policy version")
        figure.savefig(file, dpi=120)
    finally:
        plt.close(figure)


def _block_end(block: Mapping[str, Any]) -> int:
    return int(block["begins"] + block["answers"] - 1)


def _points(rows: Sequence[Mapping[str, Any]], x_of: Any, name: str) -> dict[int, float]:
    return {x_of(row): row[name] for row in rows if row[name] is not None}


def _band(axes: Axes, label: str, runs: Sequence[Mapping[int, float]]) -> None:
    """Where seeds differ in length, the band is over those that came so far."""
    at = sorted(set().union(*runs))
    values = [[run[x] for run in runs if x in run] for x in at]
    line = axes.plot(at, [median(those) for those in values], marker="." if len(at) > 1 else "o", label=label)[0]
    axes.fill_between(
        at, [min(those) for those in values], [max(those) for those in values], color=line.get_color(), alpha=0.15
    )


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
