"""Metrics on their way to Ray: one sink a process, made by the first actor in it that asks.

Ray's agent on each node exports what it is handed, at the port that `ray_metrics_export` names (see
docs/observability.md). A process that dies leaves its counters behind there as they were; its successor has series of
its own, so that a sum over processes never falls.
"""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

from clawrl.metrics.config import MetricsConfig
from clawrl.metrics.flusher import Flusher
from clawrl.metrics.metric import Kind, Metric
from clawrl.metrics.sink import NOTHING, Reading, Sink

_flusher: Flusher | None = None


def flusher_of(config: MetricsConfig) -> Flusher | None:
    """This process's; ``None`` where metrics are off."""
    global _flusher
    if _flusher is None and config.enabled:
        _flusher = Flusher(_Export().write, config.flush_s)
        _flusher.start()
    return _flusher


def sink_of(config: MetricsConfig) -> Sink:
    flusher = flusher_of(config)
    return NOTHING if flusher is None else flusher.sink


def current_sink() -> Sink:
    """For code that is made before the configuration is known: nothing, until an actor has asked."""
    return NOTHING if _flusher is None else _flusher.sink


class _Export:
    def __init__(self) -> None:
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def write(self, reading: Reading) -> None:
        metric, tags = reading.metric, dict(reading.tags)
        made = self._made.get(metric.name)
        if made is None:
            made = self._made[metric.name] = _make(metric)
        match made:
            case Counter():
                made.inc(reading.values[0], tags)
            case Gauge():
                made.set(reading.values[0], tags)
            case Histogram():
                for value in reading.values:
                    made.observe(value, tags)


def _make(metric: Metric) -> Counter | Gauge | Histogram:
    keys = tuple(metric.tags)
    says = metric.says + (f", in {metric.unit}" if metric.unit else "")
    match metric.kind:
        case Kind.COUNTER:
            return Counter(metric.ray_name, says, keys)
        case Kind.GAUGE:
            return Gauge(metric.ray_name, says, keys)
        case Kind.HISTOGRAM:
            return Histogram(metric.ray_name, says, list(metric.buckets), keys)
