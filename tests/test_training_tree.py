"""Sequences that begin alike are laid out once, and every one of them is still there."""

import numpy as np
import pytest

from clawrl.training.tree import MIN_SHARED, Forest, TokenArray, plant


def tokens(seed: int, length: int) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 50, length)


def read_back(forest: Forest, b: int) -> list[int]:
    return forest.ids_N[forest.places[b]].tolist()


def turns_of_a_session(turns: int) -> list[TokenArray]:
    whole = tokens(7, 40 * turns)
    return [whole[: 40 * (turn + 1)] for turn in range(turns)]


def assert_sound(forest: Forest, sequences: list[TokenArray]) -> None:
    for b, sequence in enumerate(sequences):
        assert read_back(forest, b) == sequence.tolist()
        assert forest.positions_N[forest.places[b]].tolist() == list(range(len(sequence)))
    for number, node in enumerate(forest.nodes):
        assert node.path[-1] == number and node.length > 0
        above = [forest.nodes[i] for i in node.path[:-1]]
        assert node.depth == sum(other.length for other in above)
        assert node.start == sum(other.length for other in forest.nodes[:number])
    assert sum(node.length for node in forest.nodes) == len(forest.ids_N)


def test_turns_that_extend_each_other_cost_as_much_as_the_last_of_them() -> None:
    sequences = turns_of_a_session(8)
    forest = plant(sequences)
    assert_sound(forest, sequences)
    assert len(forest.ids_N) == 320 and sum(map(len, sequences)) == 40 * 36
    assert [node.path for node in forest.nodes] == [tuple(range(i + 1)) for i in range(8)]


def test_answers_to_one_prompt_share_it() -> None:
    prompt = tokens(1, 30)
    sequences = [np.concatenate([prompt, [60 + i], tokens(i, 5)]) for i in range(4)]
    forest = plant(sequences)
    assert_sound(forest, sequences)
    assert len(forest.ids_N) == 30 + 4 * 6


def test_a_beginning_too_short_to_matter_is_not_shared() -> None:
    stem = tokens(2, 3 * MIN_SHARED)
    branches = [MIN_SHARED - 1, MIN_SHARED, 2 * MIN_SHARED, 2 * MIN_SHARED + 3]
    sequences = [np.concatenate([stem[:n], [60 + i] * 20]) for i, n in enumerate(branches)] + [stem]
    forest = plant(sequences)
    assert_sound(forest, sequences)
    roots = [node for node in forest.nodes if node.depth == 0]
    assert len(roots) == 2, "one shares a token too few"
    first = [node for node in forest.nodes if len(node.path) == 2]
    assert {node.depth for node in first} == {MIN_SHARED}
    assert len(forest.ids_N) == sum(map(len, sequences)) - MIN_SHARED - 2 * MIN_SHARED - (2 * MIN_SHARED + 3)


def test_equal_sequences_are_one_path_and_without_sharing_two_trees() -> None:
    sequences = [tokens(3, 25), tokens(3, 25)]
    forest = plant(sequences)
    assert_sound(forest, sequences)
    assert len(forest.nodes) == 1 and len(forest.ids_N) == 25
    apart = plant(sequences, share=False)
    assert_sound(apart, sequences)
    assert [node.path for node in apart.nodes] == [(0,), (1,)]


@pytest.mark.parametrize("seed", range(30))
def test_any_family_of_sequences_is_read_back_whole(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sequences: list[TokenArray] = [tokens(seed, int(rng.integers(1, 80)))]
    for i in range(12):
        parent = sequences[int(rng.integers(len(sequences)))]
        kept = parent[: int(rng.integers(0, len(parent) + 1))]
        sequences.append(np.concatenate([kept, tokens(1000 * seed + i, int(rng.integers(1, 40)))]))
    assert_sound(plant(sequences), sequences)
    assert len(plant(sequences).ids_N) <= sum(map(len, sequences))


def test_a_branch_just_behind_another_leaves_at_the_same_place() -> None:
    stem, on = tokens(4, 40), 1 + tokens(5, 30)
    sequences = [np.concatenate(parts) for parts in ([stem, [0], on], [stem, on], [stem, on[:5], [61], on])]
    forest = plant(sequences)
    assert_sound(forest, sequences)
    assert sorted(node.length for node in forest.nodes) == [30, 31, 36, 40]
