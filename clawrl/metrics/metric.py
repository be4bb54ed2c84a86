"""What a metric is: its names, its kind, and how it may be told apart."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

NEWEST_VERSIONS = 8
ANY_VERSION: tuple[str, ...] = ()
"""The values of a tag that is a policy version."""


class Kind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(enum.StrEnum):
    """The rows of the dashboard."""

    SERVING = "serving"
    JUDGING = "judging"
    TRAINING = "training"
    PUBLISHING = "publishing"
    LEDGER = "ledger"


_PREFIXES = {
    Group.SERVING: "perf",
    Group.JUDGING: "rollout",
    Group.TRAINING: "train",
    Group.PUBLISHING: "perf",
    Group.LEDGER: "rollout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``tags`` are the values that each may take. ``stat`` is the figure's name among a step's stats, if it is one."""

    name: str
    kind: Kind
    group: Group
    says: str
    unit: str = ""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    stat: str = ""
    slime: str = ""
    verl: str = ""
    own: str = ""

    def __post_init__(self) -> None:
        if (self.kind is Kind.HISTOGRAM) != bool(self.buckets):
            raise ValueError(f"metric {self.name}: a histogram, and it alone, has buckets")
        if list(self.buckets) != sorted(set(self.buckets)) or any(bound <= 0 for bound in self.buckets):
            raise ValueError(f"metric {self.name}: buckets must be positive and rise")

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def ray_name(self) -> str:
        """What Ray is told."""
        return f"clawrl_{self.name}"

    @property
    def prometheus(self) -> str:
        """What Prometheus calls it; a histogram's series have ``_bucket``, ``_count`` and ``_sum`` after that."""
        return f"ray_{self.ray_name}" + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def field(self) -> str:
        """What TensorBoard and W&B call it."""
        return self.slime or self.own or f"{_PREFIXES[self.group]}/{self.stat or self.name}"

    def why_not(self, tags: Mapping[str, str]) -> str | None:
        """What is wrong with these tags."""
        if set(tags) != set(self.tags):
            return f"metric {self.name} has the tags {sorted(self.tags)}, not {sorted(tags)}"
        for key, value in tags.items():
            if self.tags[key] is not ANY_VERSION and value not in self.tags[key]:
                return f"metric {self.name}: {key} is one of {self.tags[key]}, not {value!r}"
        return None
