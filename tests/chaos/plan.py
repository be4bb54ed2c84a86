"""What dies, and in which order: the same for the same seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass


class Kind(enum.StrEnum):
    COORDINATOR = "coordinator"
    DRIVER = "driver"
    RANK = "rank"
    SLEEPING_RANK = "sleeping rank"
    REPLICA = "replica"
    MID_BROADCAST = "mid-broadcast"
    JUDGE = "judge"
    NODE = "node"


# Of hundred. The rare ones keep the trainer away for longest.
SHARES = {
    Kind.REPLICA: 22,
    Kind.COORDINATOR: 20,
    Kind.RANK: 14,
    Kind.JUDGE: 14,
    Kind.MID_BROADCAST: 12,
    Kind.DRIVER: 10,
    Kind.NODE: 5,
    Kind.SLEEPING_RANK: 3,
}
STOPS_TRAINING = frozenset({Kind.DRIVER, Kind.RANK, Kind.SLEEPING_RANK, Kind.NODE})
TAKES_A_REPLICA = frozenset({Kind.REPLICA, Kind.MID_BROADCAST, Kind.NODE})
# What is done while a rank sleeps, which takes about as long as the others wait for it.
_COMPANY = (Kind.REPLICA, Kind.COORDINATOR, Kind.JUDGE, Kind.REPLICA, Kind.COORDINATOR)
_AT_ONCE_SHARE = 0.3
_LONGEST_REST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``rest_s`` passes before it once the graph serves again; ``at_once`` does not wait for that."""

    number: int
    kind: Kind
    rest_s: float
    at_once: bool


def make_plan(seed: int, kills: int) -> tuple[Fault, ...]:
    """Every kind in its share, as far as ``kills`` go round, in an order drawn by ``seed``."""
    draw = random.Random(seed)
    blocks = _with_company_for_sleepers(_in_their_shares(kills))
    draw.shuffle(blocks)
    return tuple(
        Fault(
            number=number,
            kind=kind,
            rest_s=draw.uniform(0.0, _LONGEST_REST_S),
            at_once=number > 1 and draw.random() < _AT_ONCE_SHARE,
        )
        for number, kind in enumerate((kind for block in blocks for kind in block), start=1)
    )


def _in_their_shares(kills: int) -> list[Kind]:
    """One of each while they last, then whichever is furthest behind its share."""
    taken = dict.fromkeys(SHARES, 0)
    for _ in range(kills):
        kind = max(SHARES, key=lambda k: (taken[k] == 0, SHARES[k] / sum(SHARES.values()) * kills - taken[k]))
        taken[kind] += 1
    return [kind for kind, count in taken.items() for _ in range(count)]


def _with_company_for_sleepers(kinds: Sequence[Kind]) -> list[list[Kind]]:
    """With each sleeping rank go, if there are any, some that leave the trainer alone, to be done meanwhile."""
    rest = list(kinds)
    blocks = []
    for sleeper in [kind for kind in kinds if kind is Kind.SLEEPING_RANK]:
        block = []
        for kind in (sleeper, *_COMPANY):
            if kind in rest:
                rest.remove(kind)
                block.append(kind)
        blocks.append(block)
    return blocks + [[kind] for kind in rest]
