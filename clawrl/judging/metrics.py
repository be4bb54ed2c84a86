"""How well verdicts and scores agree with labels. Pure functions of numpy arrays.

``labels`` and ``verdicts`` are 1, 0 or -1; ``scores`` grow with how good an answer seems. What cannot be said because
one side has no cases is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
CLASSES = (1, 0, -1)
_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Cases whose sigmoid(score) is in ``low..high``: how many, what was said on average, what was true."""

    low: float
    high: float
    cases: int
    predicted: float
    good: float


def balanced_accuracy(labels: Labels, verdicts: Labels) -> float | None:
    """The mean of how many of the good and of the bad are found; neutral verdicts on them count as wrong."""
    recalls = [np.mean(verdicts[labels == label] == label) for label in (1, -1) if (labels == label).any()]
    return float(np.mean(recalls)) if len(recalls) == 2 else None


def auc(labels: Labels, scores: Floats) -> float | None:
    """The chance that a good case scores higher than a bad one; ties count half."""
    good, bad = scores[labels == 1], np.sort(scores[labels == -1])
    if not len(good) or not len(bad):
        return None
    below = np.searchsorted(bad, good, side="left")
    not_above = np.searchsorted(bad, good, side="right")
    return float((below + not_above).sum() / 2 / (len(good) * len(bad)))


def best_threshold(labels: Labels, scores: Floats) -> tuple[float, float] | None:
    """(threshold, balanced accuracy) of "good above, bad at or below"; of equally good ones the one nearest to 0."""
    good, bad = np.sort(scores[labels == 1]), np.sort(scores[labels == -1])
    if not len(good) or not len(bad):
        return None
    candidates = _between(np.concatenate([good, bad]))
    found_good = 1 - np.searchsorted(good, candidates, side="right") / len(good)
    found_bad = np.searchsorted(bad, candidates, side="right") / len(bad)
    return _best(candidates, (found_good + found_bad) / 2)


def best_margin(labels: Labels, scores: Floats) -> tuple[float, float] | None:
    """(margin, mean recall of the labels that occur) of "good above, bad below minus, else neutral"; smallest first.

    Only neutral cases make a margin above 0 worth its price.
    """
    sides = {label: np.sort(scores[labels == label]) for label in CLASSES}
    if not len(scores):
        return None
    margins = np.unique(np.abs(_between(np.abs(scores))))
    recalls = []
    if len(sides[1]):
        recalls.append(1 - np.searchsorted(sides[1], margins, side="right") / len(sides[1]))
    if len(sides[-1]):
        recalls.append(np.searchsorted(sides[-1], -margins, side="left") / len(sides[-1]))
    if len(sides[0]):
        recalls.append(np.searchsorted(np.sort(np.abs(sides[0])), margins, side="right") / len(sides[0]))
    return _best(margins, np.mean(recalls, axis=0))


def reliability(labels: Labels, scores: Floats) -> tuple[tuple[Bin, ...], float | None]:
    """The filled ones of ten bins of sigmoid(score) over good and bad cases, and their expected calibration error.

    The error is the mean distance between what is said and what is true, weighted by cases.
    """
    told = labels != 0
    labels, scores = labels[told], scores[told]
    # The form that cannot overflow.
    predicted = (1 + np.tanh(scores / 2)) / 2
    places = np.minimum((predicted * _BINS).astype(np.int64), _BINS - 1)
    bins = []
    for place in np.unique(places):
        inside = places == place
        bins.append(
            Bin(
                low=float(place / _BINS),
                high=float((place + 1) / _BINS),
                cases=int(inside.sum()),
                predicted=float(predicted[inside].mean()),
                good=float((labels[inside] == 1).mean()),
            )
        )
    error = sum(b.cases * abs(b.predicted - b.good) for b in bins) / len(labels) if bins else None
    return tuple(bins), error


def confusion(labels: Sequence[int], verdicts: Sequence[int | None]) -> dict[str, dict[str, int]]:
    """Cases by label, then by verdict; a verdict of None is ``abstained``."""
    table = {str(label): {**{str(verdict): 0 for verdict in CLASSES}, "abstained": 0} for label in CLASSES}
    for label, verdict in zip(labels, verdicts, strict=True):
        table[str(label)]["abstained" if verdict is None else str(verdict)] += 1
    return table


def _between(values: Floats) -> Floats:
    """0, the points half-way between neighbours, and one beyond each end."""
    values = np.unique(values)
    halves = (values[:-1] + values[1:]) / 2
    return np.unique(np.concatenate([[0.0, values[0] - 1.0, values[-1] + 1.0], halves]))


def _best(candidates: Floats, qualities: Floats) -> tuple[float, float]:
    best = candidates[np.isclose(qualities, qualities.max())]
    return float(best[np.argmin(np.abs(best))]), float(qualities.max())
