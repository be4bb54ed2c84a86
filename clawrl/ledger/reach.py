"""Which policy versions hold what was learned in a step.

The weights of a version hold every step up to its own; but after a rollback training goes on from the weights of an
earlier version, and the steps between are in no version that comes after.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clawrl.ledger.database import Database
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.ledger.versions import versions
from clawrl.messages import PolicyVersion

_ALL = 1_000_000
_Held = tuple[tuple[int, int], ...]
"""Half-open ranges of steps: from, not included, to, included."""


def versions_with(db: Database, steps: Collection[int]) -> list[int]:
    """The numbers of the versions that learned from any of these steps, oldest first."""
    return holding(sorted(versions(db, _ALL), key=lambda version: version.version), steps)


def holding(known: Sequence[PolicyVersion], steps: Collection[int]) -> list[int]:
    """``known`` in the order of their numbers."""
    line: _Held = ((0, _ALL),)
    held: dict[int, _Held] = {}
    for version in known:
        back_to = version.stats.get("rolled_back_to")
        if back_to is None:
            held[version.version] = _up_to(line, version.step)
            continue
        held[version.version] = held.get(int(back_to), ((0, version.step),))
        if (at := version.stats.get(REWOUND_AT)) is not None:
            line = (*held[version.version], (int(at), _ALL))
    return [
        number for number, ranges in held.items() if any(low < step <= high for step in steps for low, high in ranges)
    ]


def _up_to(line: _Held, step: int) -> _Held:
    return tuple((low, min(high, step)) for low, high in line if low < step)
