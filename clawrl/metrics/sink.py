"""Where metrics leave by: one sink a process, that whoever measures is given.

A sink never raises on what it is told: a figure that is not finite, or has tags that are not in the catalogue, is left
out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clawrl.metrics.metric import Kind, Metric

log = logging.getLogger(__name__)
_MOST_VALUES = 4096
_LEVELS_STAND_S = 15.0


class Sink(Protocol):
    def add(self, metric: Metric, amount: float = 1.0, /, **tags: str) -> None:
        """A counter goes up."""

    def set(self, metric: Metric, value: float, /, **tags: str) -> None:
        """A gauge stands at ``value``, until it is set again or has not been for some seconds."""

    def observe(self, metric: Metric, values: Sequence[float], /, **tags: str) -> None:
        """A histogram takes in each of ``values``."""


class _Nothing:
    def add(self, metric: Metric, amount: float = 1.0, /, **tags: str) -> None: ...

    def set(self, metric: Metric, value: float, /, **tags: str) -> None: ...

    def observe(self, metric: Metric, values: Sequence[float], /, **tags: str) -> None: ...


NOTHING: Sink = _Nothing()
"""For when nobody looks."""

_Key = tuple[Metric, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was told of one series since the reading before. ``values``: one sum, one level, or single observations."""

    metric: Metric
    tags: Mapping[str, str]
    values: Sequence[float]


@dataclass(slots=True)
class Buffer:
    """A sink that costs a dictionary look-up: what it is told is kept until `drain`. Any thread may call it.

    A level is told again with each drain, since an exporter forgets one that it does not hear of, until nobody has set
    it for `_LEVELS_STAND_S`.
    Of one histogram at most ``_MOST_VALUES`` observations are kept between two drains; those beyond are counted in
    ``lost``.
    """

    clock: Callable[[], float] = time.monotonic
    lost: int = 0
    _sums: dict[_Key, float] = field(default_factory=dict)
    _levels: dict[_Key, tuple[float, float]] = field(default_factory=dict)
    _observed: dict[_Key, list[float]] = field(default_factory=dict)
    _refused: set[_Key] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, metric: Metric, amount: float = 1.0, /, **tags: str) -> None:
        if not 0.0 < amount < math.inf:
            return
        key = (metric, tuple(tags.items()))
        with self._lock:
            if key in self._sums or self._may(key, Kind.COUNTER):
                self._sums[key] = self._sums.get(key, 0.0) + amount

    def set(self, metric: Metric, value: float, /, **tags: str) -> None:
        if not math.isfinite(value):
            return
        key = (metric, tuple(tags.items()))
        with self._lock:
            if key in self._levels or self._may(key, Kind.GAUGE):
                self._levels[key] = (value, self.clock())

    def observe(self, metric: Metric, values: Sequence[float], /, **tags: str) -> None:
        key = (metric, tuple(tags.items()))
        finite = [value for value in values if math.isfinite(value)]
        with self._lock:
            if key in self._observed or self._may(key, Kind.HISTOGRAM):
                kept = self._observed.setdefault(key, [])
                room = _MOST_VALUES - len(kept)
                kept += finite[:room]
                self.lost += max(len(finite) - room, 0)

    def drain(self) -> list[Reading]:
        """Everything since the last time, and the levels that stand."""
        with self._lock:
            since = self.clock() - _LEVELS_STAND_S
            self._levels = {key: level for key, level in self._levels.items() if level[1] >= since}
            levels = dict(self._levels)
            sums, observed = self._sums, self._observed
            self._sums, self._observed = {}, {}
        return [
            *(Reading(metric, dict(tags), (amount,)) for (metric, tags), amount in sums.items()),
            *(Reading(metric, dict(tags), (level,)) for (metric, tags), (level, _) in levels.items()),
            *(Reading(metric, dict(tags), values) for (metric, tags), values in observed.items() if values),
        ]

    def _may(self, key: _Key, kind: Kind) -> bool:
        metric, tags = key
        why = metric.why_not(dict(tags)) if metric.kind is kind else f"metric {metric.name} is a {metric.kind}"
        if why is not None and key not in self._refused and len(self._refused) < _MOST_VALUES:
            self._refused.add(key)
            log.error("not told: %s", why)
        return why is None


def totals(readings: Iterable[Reading]) -> dict[tuple[str, ...], float]:
    """By name and tag values in the catalogue's order: sums, levels, or how many were observed."""
    found: dict[tuple[str, ...], float] = {}
    for reading in readings:
        metric = reading.metric
        key = (metric.name, *(reading.tags[tag] for tag in metric.tags))
        match metric.kind:
            case Kind.COUNTER:
                found[key] = found.get(key, 0.0) + reading.values[0]
            case Kind.GAUGE:
                found[key] = reading.values[0]
            case Kind.HISTOGRAM:
                found[key] = found.get(key, 0.0) + len(reading.values)
    return found
