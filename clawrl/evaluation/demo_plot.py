"""The demo's picture: first answers by block of sessions; accepted share, length and reward by policy version."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from clawrl.evaluation.blocks import blocks
from clawrl.evaluation.demo_report import version_rows
from clawrl.evaluation.observations import Observations


def write_plot(seen: Observations, words_wanted: tuple[int | None, int | None], file: Path) -> None:
    """Panels one under the other; versions without a figure leave a gap, not a zero."""
    figure, (firsts, accepted, words, reward) = plt.subplots(4, 1, figsize=(8, 10), layout="constrained")
    try:
        cut = blocks(seen.record.first_answers())
        _curve(
            firsts,
            [block.begins + block.answers - 1 for block in cut],
            [block.accepted_share for block in cut],
            "accepted share of first answers (the user's rule)",
        )
        firsts.set_ylim(-0.05, 1.05)
        firsts.set_xlabel("sessions")
        rows = version_rows(seen.record.answers, seen.versions)
        versions = [row.version for row in rows]
        _curve(accepted, versions, [row.accepted_share for row in rows], "accepted share of all answers")
        accepted.set_ylim(-0.05, 1.05)
        _curve(words, versions, [row.mean_words for row in rows], "mean length in words")
        fewest, most = words_wanted
        words.axhspan(fewest or 0, most or words.get_ylim()[1], alpha=0.12, color="tab:green")
        _curve(reward, versions, [row.reward for row in rows], "mean reward (the judge)")
        reward.set_ylim(-1.1, 1.1)
        reward.set_xlabel("policy version")
        for axes in (firsts, accepted, words, reward):
            axes.xaxis.get_major_locator().set_params(integer=True)
        figure.suptitle("How the answers changed while people talked to the model")
        figure.savefig(file, dpi=120)
    finally:
        plt.close(figure)


def _curve(axes: Axes, x: Sequence[int], values: Sequence[float | None], title: str) -> None:
    axes.plot(x, [float("nan") if value is None else value for value in values], marker="o")
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.3)
