"""The demo's picture: accepted share, mean length and reward, each over the policy version."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from clawrl.evaluation.demo_report import VersionRow
from clawrl.evaluation.simulated_user import MAX_WORDS, MIN_WORDS


def write_plot(rows: Sequence[VersionRow], file: Path) -> None:
    """Three panels one under the other; versions without a figure leave a gap, not a zero."""
    figure, (accepted, words, reward) = plt.subplots(3, 1, sharex=True, figsize=(8, 8), layout="constrained")
    try:
        versions = [row.version for row in rows]
        _curve(accepted, versions, [row.accepted_share for row in rows], "accepted share (the user's rule)")
        accepted.set_ylim(-0.05, 1.05)
        _curve(words, versions, [row.mean_words for row in rows], "mean length in words")
        words.axhspan(MIN_WORDS, MAX_WORDS, alpha=0.12, color="tab:green")
        _curve(reward, versions, [row.reward for row in rows], "mean reward (the judge)")
        reward.set_ylim(-1.1, 1.1)
        reward.set_xlabel("policy version")
        reward.xaxis.get_major_locator().set_params(integer=True)
        figure.suptitle("How the answers changed while people talked to the model")
        figure.savefig(file, dpi=120)
    finally:
        plt.close(figure)


def _curve(axes: Axes, versions: Sequence[int], values: Sequence[float | None], title: str) -> None:
    axes.plot(versions, [float("nan") if value is None else value for value in values], marker="o")
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.3)
