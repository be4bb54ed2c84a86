"""When the recent answers look degenerate: one panel of figures, one alarm.

In: the `Vitals` of main turns, in the order in which they were measured. Out: at most one `Alarm` until `resume`; who
receives it pauses submission. Learning goes wrong gradually and versions follow each other quickly, so three sets of
turns are told apart:

* the *baseline*: the first turns, of the version that served them while it served (at most ``window``), filled up with
  later ones only if that version had less than ``min_turns``. It stays, also over a restart (`state`, `restore`).
* the *recent* turns: those of the newest version once it has ``min_turns``, else the last ``window`` whatever their
  version, so that what an earlier version did soon stops counting.
* a version's *own* turns, which say whether it was healthy.

An alarm needs ``min_turns`` recent turns, not all of the baseline's version: what was there before any training is no
effect of it. Which figures are compared with what is in ``guards.figures``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clawrl.guards.config import AlarmConfig
from clawrl.guards.figures import Bound, Mean, Seen, bounds, broken, means, seen
from clawrl.messages import Vitals

_REMEMBERED_VERSIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Why learning should pause. ``name`` is the gravest broken figure, ``version`` the newest version concerned."""

    name: str
    reason: str
    figures: Mapping[str, float]
    version: int


class AlarmPanel:
    def __init__(self, config: AlarmConfig) -> None:
        self._config = config
        self._baseline: list[Seen] = []
        self._recent: deque[Seen] = deque(maxlen=config.window)
        self._healthy: list[int] = []
        self.alarm: Alarm | None = None

    def observe(self, vitals: Vitals) -> Alarm | None:
        """Take in one turn. Returns an alarm when this turn sets it off; after that none until `resume`."""
        turn = seen(vitals)
        if self._belongs_to_baseline(turn):
            self._baseline.append(turn)
        self._recent.append(turn)
        if len(self._baseline) < self._config.min_turns:
            return None
        watched = bounds(self._config, means(self._baseline, self._config))
        self._note_health(watched)
        if self.alarm is not None or not self._config.enabled:
            return None
        self.alarm = self._alarm(watched)
        return self.alarm

    def resume(self) -> None:
        """Start over with the recent turns: an operator said go on, or older weights serve again."""
        self._recent.clear()
        self.alarm = None

    def healthy_versions(self) -> tuple[int, ...]:
        """Those of whose own turns half of ``min_turns`` were seen and kept every bound; the newest first."""
        return tuple(reversed(self._healthy))

    def figures(self) -> dict[str, float]:
        """The recent means, and the first ones as ``baseline_...``."""
        first = {f"baseline_{name}": mean.value for name, mean in means(self._baseline, self._config).items()}
        return {name: mean.value for name, mean in self._figures().items()} | first

    def state(self) -> dict[str, Any]:
        """JSON-able; everything that `observe` depends on apart from the config."""
        return {
            "baseline": [asdict(turn) for turn in self._baseline],
            "recent": [asdict(turn) for turn in self._recent],
            "healthy": list(self._healthy),
            "alarm": None if self.alarm is None else asdict(self.alarm),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._baseline = [Seen(**turn) for turn in state["baseline"]]
        self._recent = deque((Seen(**turn) for turn in state["recent"]), maxlen=self._config.window)
        self._healthy = list(state["healthy"])
        self.alarm = None if state["alarm"] is None else Alarm(**state["alarm"])

    def _belongs_to_baseline(self, turn: Seen) -> bool:
        size = len(self._baseline)
        if size < self._config.min_turns:
            return True
        # Turns of the first version that are measured late are as good as the others.
        return size < self._config.window and turn.version == self._baseline[0].version

    def _recent_turns(self) -> list[Seen]:
        if not self._recent:
            return []
        newest = max(turn.version for turn in self._recent)
        own = [turn for turn in self._recent if turn.version == newest]
        return own if len(own) >= self._config.min_turns else list(self._recent)

    def _figures(self) -> dict[str, Mean]:
        return means(self._recent_turns(), self._config)

    def _alarm(self, watched: list[Bound]) -> Alarm | None:
        turns = self._recent_turns()
        versions = sorted({turn.version for turn in turns})
        if len(turns) < self._config.min_turns or versions[-1] <= self._baseline[0].version:
            return None
        figures = means(turns, self._config)
        wrong = broken(figures, watched)
        if not wrong:
            return None
        span = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
        said = "; ".join(
            f"the {bound.what} is {mean.value:.2f} over {mean.count} turns of {span}, "
            f"the {'least' if bound.floor else 'most'} allowed is {bound.limit:.2f}"
            for bound, mean in wrong
        )
        return Alarm(
            name=wrong[0][0].figure,
            reason=f"{said}. `clawrl resume` goes on; {wrong[0][0].remedy}",
            figures={name: mean.value for name, mean in figures.items()},
            version=versions[-1],
        )

    def _note_health(self, watched: list[Bound]) -> None:
        for version in {turn.version for turn in self._recent}:
            own = [turn for turn in self._recent if turn.version == version]
            if len(own) < self._config.min_turns // 2:
                continue
            # Stricter than an alarm: a version to go back to is not given the benefit of the doubt.
            found = means(own, self._config)
            judged = all(bound.figure in found for bound in watched)
            sound = judged and not broken(found, watched, errors=0.0)
            healthy = set(self._healthy) - {version} | ({version} if sound else set())
            self._healthy = sorted(healthy)[-_REMEMBERED_VERSIONS:]
