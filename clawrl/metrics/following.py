"""What the ledger knows, told as metrics: levels at every look, and what happened since the look before.

Levels come from the disk and so are right again at once after a restart of the coordinator. Steps and versions are
counted once each, from the first look of a process on: what a process before it counted stays in its own series, which
Prometheus adds up.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clawrl.ledger.store import Ledger
from clawrl.ledger.views import Counts, StepRow, StepState, VersionReward
from clawrl.messages import DropReason, PolicyVersion, TurnState
from clawrl.metrics import catalogue
from clawrl.metrics.metric import NEWEST_VERSIONS
from clawrl.metrics.sink import Sink

_STEPS, _RECENT_TURNS = 64, 2000
# How a commit went is written down when every replica has answered, or is given up on.
_ANNOTATED_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One moment of the ledger. Steps and versions are newest first."""

    counts: Counts
    sessions: int
    paused: bool
    steps: Sequence[StepRow]
    versions: Sequence[PolicyVersion]
    rewards: Sequence[VersionReward]


def look(ledger: Ledger) -> Look:
    """Reads only; a few milliseconds on the ledger's own thread."""
    return Look(
        counts=ledger.counts(),
        sessions=ledger.active_sessions(),
        paused=ledger.paused() is not None,
        steps=[step for step in ledger.steps(_STEPS) if step.state is not StepState.UNDONE],
        versions=ledger.versions(_STEPS),
        rewards=ledger.reward_by_version(_RECENT_TURNS, NEWEST_VERSIONS),
    )


class Following:
    """``replicas`` of `tell` is what `Members.describe` says, ``guards`` the guard's figures."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._step: tuple[str, int] | None = None
        self._version = -1
        self._began = False

    def tell(
        self, sink: Sink, seen: Look, replicas: Sequence[Mapping[str, Any]], guards: Mapping[str, float], journaled: int
    ) -> None:
        _tell_turns(sink, seen, journaled)
        current = seen.versions[0].version if seen.versions else 0
        _tell_replicas(sink, replicas, current)
        _tell_newest_step(sink, seen.steps)
        sizes = (figure(version.stats, catalogue.VERSION_BYTES.stat) for version in seen.versions)
        if (size := next((size for size in sizes if size is not None), None)) is not None:
            sink.set(catalogue.VERSION_BYTES, size)
        if "kl" in guards:
            sink.set(catalogue.KL_FROM_START, guards["kl"])
        for step in self._new_steps(seen.steps):
            _tell_step(sink, step)
        for version in self._new_versions(seen.versions):
            _tell_version(sink, version)
        self._began = True

    def _new_steps(self, newest_first: Sequence[StepRow]) -> list[StepRow]:
        """Oldest first. Of what there was before the first look nothing is new."""
        new = []
        for step in newest_first:
            if (step.run_id, step.step) == self._step:
                break
            new.append(step)
        if newest_first:
            self._step = (newest_first[0].run_id, newest_first[0].step)
        return new[::-1] if self._began else []

    def _new_versions(self, newest_first: Sequence[PolicyVersion]) -> list[PolicyVersion]:
        new = []
        for version in sorted(newest_first, key=lambda version: version.version):
            if version.version <= self._version:
                continue
            under_way = "transfer_s" in version.stats and "committed" not in version.stats
            if under_way and self._clock() - version.published_at < _ANNOTATED_WITHIN_S:
                break
            self._version = version.version
            new.append(version)
        return new if self._began else []


def _tell_turns(sink: Sink, seen: Look, journaled: int) -> None:
    counts = seen.counts
    for state in TurnState:
        sink.set(catalogue.TURNS, counts.by_state.get(state, 0), state=state.value)
    # All of them, from the start: what is not there yet could not be seen to rise.
    for reason in DropReason:
        sink.set(catalogue.DROPPED, counts.dropped.get(reason, 0), reason=reason.value)
    sink.set(catalogue.RECORDED, counts.recorded)
    sink.set(catalogue.UNBALANCED, counts.recorded - sum(counts.by_state.values()))
    sink.set(catalogue.QUEUE_DEPTH, counts.by_state.get(TurnState.QUEUED, 0))
    sink.set(catalogue.SESSIONS, seen.sessions)
    sink.set(catalogue.PAUSED, float(seen.paused))
    sink.set(catalogue.JOURNALED, journaled)
    for reward in seen.rewards:
        sink.set(catalogue.REWARD_MEAN, reward.mean, version=str(reward.version))
        sink.set(catalogue.REWARDED_TURNS, reward.turns, version=str(reward.version))


def _tell_replicas(sink: Sink, replicas: Sequence[Mapping[str, Any]], current: int) -> None:
    held = Counter(int(replica["version"]) for replica in replicas)
    for version in sorted(held, reverse=True)[:NEWEST_VERSIONS]:
        sink.set(catalogue.REPLICAS, held[version], version=str(version))
    sink.set(catalogue.REPLICAS_BEHIND, sum(count for version, count in held.items() if version < current))
    sink.set(catalogue.POLICY_VERSION, current)


def _tell_newest_step(sink: Sink, steps: Sequence[StepRow]) -> None:
    if not steps:
        return
    sink.set(catalogue.STEP, steps[0].step)
    for metric in catalogue.STEP_FIGURES:
        # A batch that taught nothing has no loss; the one before it has.
        value = next((found for step in steps if (found := figure(step.stats, metric.stat)) is not None), None)
        if value is not None:
            sink.set(metric, value)


def _tell_step(sink: Sink, step: StepRow) -> None:
    sink.add(catalogue.STEPS, changed="yes" if step.stats.get("changed") else "no")
    if (whole := figure(step.stats, catalogue.STEP_SECONDS.stat)) is not None:
        sink.observe(catalogue.STEP_SECONDS, (whole,))
        parts = {phase: figure(step.stats, f"{phase}_s") or 0.0 for phase in catalogue.PHASES if phase != "other"}
        for phase, seconds in {**parts, "other": whole - sum(parts.values())}.items():
            sink.add(catalogue.PHASE_SECONDS, seconds, phase=phase)
    for lag, count in (step.stats.get("lag") or {}).items():
        sink.observe(catalogue.SAMPLE_LAG, [float(lag)] * count)


def _tell_version(sink: Sink, version: PolicyVersion) -> None:
    stats = version.stats
    if "rolled_back_to" in stats:
        sink.add(catalogue.PUBLISHES, kind="rollback")
    elif "transfer_s" in stats:
        sink.add(catalogue.PUBLISHES, kind="trained")
    committed = int(stats.get("committed") or 0)
    if (seconds := figure(stats, "publish_s")) is not None:
        sink.observe(catalogue.PUBLISH_SECONDS, (seconds,))
    sink.add(catalogue.PUBLISH_BYTES, (figure(stats, "bytes") or 0.0) * committed)
    if committed and (hold_ms := figure(stats, "hold_ms")) is not None:
        sink.observe(catalogue.HOLD_SECONDS, (hold_ms / 1000,))
    sink.add(catalogue.HELD_REQUESTS, figure(stats, "carried") or 0.0)


def figure(stats: Mapping[str, Any], name: str) -> float | None:
    """A finite number; ``None`` of anything else."""
    value = stats.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
