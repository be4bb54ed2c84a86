"""What a run of the real graph left behind, as its clients and its status saw it. Data only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clawrl.evaluation.demo_users import Answer, Record
from clawrl.evaluation.measures import Measures


@dataclass(slots=True, kw_only=True)
class Observations:
    """``versions``: published version -> its row of the status.

    ``start`` and ``end`` are what the frozen starting model says of first answers and of answers to held-out questions,
    by version 0 and at the end; written after the graph has stopped, None where there was nothing to measure.
    ``not_measured`` says why it could not be asked.
    """

    record: Record = field(default_factory=Record)
    before: list[Answer] = field(default_factory=list)
    after: list[Answer] = field(default_factory=list)
    versions: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    turns: Sequence[Mapping[str, Any]] = ()
    memory_mb: Mapping[str, Any] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    ended: str = ""
    start: Measures | None = None
    end: Measures | None = None
    not_measured: str | None = None
