"""The order of a chaos run's faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.plan import SHARES, Kind, make_plan


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert make_plan(1, 50) == make_plan(1, 50)
    assert make_plan(1, 50) != make_plan(2, 50)


@pytest.mark.parametrize("kills", [8, 20, 200])
def test_every_kind_is_in_the_plan_and_none_is_missing_its_share(kills: int) -> None:
    plan = make_plan(3, kills)
    assert [fault.number for fault in plan] == list(range(1, kills + 1))
    counts = Counter(fault.kind for fault in plan)
    for kind, share in SHARES.items():
        assert counts[kind] >= max(1, int(share / 100 * kills) - 2), counts


def test_what_comes_after_a_sleeping_rank_leaves_the_trainer_alone() -> None:
    for seed in range(20):
        kinds = [fault.kind for fault in make_plan(seed, 20)]
        after = kinds[kinds.index(Kind.SLEEPING_RANK) + 1 :][:5]
        assert set(after) <= {Kind.COORDINATOR, Kind.JUDGE, Kind.REPLICA}, kinds


def test_the_first_fault_waits_for_the_graph() -> None:
    assert not any(make_plan(seed, 20)[0].at_once for seed in range(30))
