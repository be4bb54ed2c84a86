"""Packs keep to their budget, keep families together, and give every rank as much to do."""

import numpy as np
import pytest

from clawrl.training.packing import plan_packs
from clawrl.training.tree import TokenArray, plant


def tokens(seed: int, length: int) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 1000, length)


def lone(lengths: list[int]) -> list[TokenArray]:
    return [tokens(i, length) for i, length in enumerate(lengths)]


def session(seed: int, turns: int, turn_tokens: int) -> list[TokenArray]:
    whole = tokens(seed, turns * turn_tokens)
    return [whole[: turn_tokens * (turn + 1)] for turn in range(turns)]


def size(sequences: list[TokenArray], pack: tuple[int, ...]) -> int:
    return len(plant([sequences[i] for i in pack]).ids_N) if pack else 0


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_sample_is_in_one_pack_and_no_pack_is_over_budget_unless_one_sample_is(ranks: int) -> None:
    sequences = lone([30, 5, 12, 7, 7, 11, 3, 90]) + session(50, 4, 20)
    plan = plan_packs(sequences, 60, ranks=ranks)
    assert len(plan) == ranks and len({len(passes) for passes in plan}) == 1
    packs = [pack for passes in plan for pack in passes]
    assert sorted(i for pack in packs for i in pack) == list(range(len(sequences)))
    assert all(size(sequences, pack) <= 60 or len(pack) == 1 for pack in packs)


def test_packs_are_few() -> None:
    (passes,) = plan_packs(lone([10] * 12), 40)
    assert len(passes) == 3


def test_turns_of_a_session_go_together_and_are_counted_once() -> None:
    sequences = session(1, 5, 20) + lone([30])
    (passes,) = plan_packs(sequences, 130)
    assert len(passes) == 1, "100 tokens of the session and 30"
    (passes,) = plan_packs(sequences, 120)
    assert sorted(map(len, passes)) == [1, 5]


def test_a_session_over_budget_is_cut_between_turns() -> None:
    (passes,) = plan_packs(session(1, 6, 20), 60)
    assert all(size(session(1, 6, 20), pack) <= 60 or len(pack) == 1 for pack in passes)
    assert any(len(pack) == 3 for pack in passes)


def test_one_long_session_is_shared_out_rather_than_leaving_ranks_idle() -> None:
    sequences = session(1, 8, 20)
    (alone,), (left, right) = plan_packs(sequences, 1000), plan_packs(sequences, 1000, ranks=2)
    assert len(alone) == 1
    assert sorted(map(len, [*left, *right])) == [4, 4], "four turns each, the first four once more on one rank"


def test_ranks_get_about_the_same_and_long_rows_cost_more_than_their_tokens() -> None:
    sequences = lone([400, 100, 100, 100, 100, 50, 50, 300])
    left, right = plan_packs(sequences, 600, ranks=2)
    sizes = [sum(len(sequences[i]) for pack in passes for i in pack) for passes in (left, right)]
    assert abs(sizes[0] - sizes[1]) <= 50
    left, right = plan_packs(sequences, 1200, ranks=2, pair_cost=1.0)
    by_pairs = [sum(len(sequences[i]) ** 2 for pack in passes for i in pack) for passes in (left, right)]
    assert max(by_pairs) == 400**2, "the longest row is as much work as all the others"


def test_a_rank_for_which_nothing_is_left_takes_part_with_an_empty_pack() -> None:
    assert sorted(plan_packs(lone([10]), 100, ranks=3)) == [[()], [()], [(0,)]]


def test_the_plan_does_not_depend_on_the_order_of_arrival_beyond_the_numbers() -> None:
    sequences = lone([30, 5, 12, 7]) + session(9, 3, 20)
    backwards = sequences[::-1]
    (there,), (back,) = plan_packs(sequences, 60), plan_packs(backwards, 60)
    last = len(sequences) - 1
    assert {tuple(sorted(last - i for i in pack)) for pack in back} == {tuple(sorted(pack)) for pack in there}
    assert plan_packs(sequences, 60) == plan_packs(sequences, 60)


def test_without_sharing_every_sample_counts_whole() -> None:
    (passes,) = plan_packs(session(1, 5, 20), 300, share=False)
    assert len(passes) == 1
    (passes,) = plan_packs(session(1, 5, 20), 200, share=False)
    assert len(passes) == 2


def test_a_sample_that_fits_no_pack_opens_another() -> None:
    (passes,) = plan_packs(lone([35, 35, 35]), 60)
    assert sorted(map(len, passes)) == [1, 1, 1]


def test_there_are_no_more_packs_than_samples() -> None:
    (passes,) = plan_packs(lone([10, 12]), 1)
    assert sorted(passes) == [(0,), (1,)]


def test_branches_that_are_too_close_to_be_shared_count_as_what_they_are() -> None:
    stem = tokens(7, 80)
    sequences = [np.concatenate([stem[: 20 + 8 * i], 2000 + 100 * i + np.arange(12)]) for i in range(7)]
    for budget in range(60, 260, 7):
        (passes,) = plan_packs(sequences, budget)
        assert all(size(sequences, pack) <= budget or len(pack) == 1 for pack in passes), budget
