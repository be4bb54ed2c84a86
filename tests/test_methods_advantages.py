"""Rewards to advantages: closed forms, groups in any order, and no batch that gives a NaN."""

import json
import math
import statistics
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from clawrl.methods.advantages import INITIAL_STATE, AdvantageConfig, advantages
from clawrl.methods.registry import build_method, builtin_names, method_class

GRPO = {"baseline": "group", "group_size": 4, "normalize": True}
CENTRED = {"baseline": "group", "group_size": 4}
RLOO = {"baseline": "leave_one_out", "group_size": 4}
COMPARED = pytest.mark.parametrize("settings", [GRPO, CENTRED, RLOO], ids=["grpo", "centred", "rloo"])
REWARDS = [1.0, -1.0, -1.0, 0.5, 1.0, 1.0, -1.0, -0.25, 0.75, -1.0, -1.0]
GROUPS: list[str | None] = ["a"] * 4 + ["b"] * 3 + ["c"] * 4


def run(
    settings: dict[str, Any],
    rewards: list[float],
    groups: list[str | None],
    mask: list[bool] | None = None,
    baseline: float = 0.0,
) -> list[float]:
    counts = np.array([True] * len(rewards) if mask is None else mask, dtype=np.bool_)
    got, _ = advantages(np.array(rewards), counts, groups, {"baseline": baseline}, AdvantageConfig(**settings))
    assert np.isfinite(got).all() and got.shape == counts.shape
    return got.tolist()


def closed_form(settings: dict[str, Any], reward: float, members: list[float]) -> float:
    if settings is RLOO:
        others = list(members)
        others.remove(reward)
        return reward - statistics.mean(others)
    centred = reward - statistics.mean(members)
    return centred / (statistics.stdev(members) + 1e-6) if settings is GRPO else centred


@COMPARED
def test_a_group_is_compared_with_itself_by_the_closed_form(settings: dict[str, Any]) -> None:
    expected = [
        closed_form(settings, reward, [r for r, g in zip(REWARDS, GROUPS, strict=True) if g == group])
        for reward, group in zip(REWARDS, GROUPS, strict=True)
    ]
    assert run(settings, REWARDS, GROUPS) == pytest.approx(expected, rel=1e-12)
    assert max(map(abs, expected)) > 0.5


@COMPARED
def test_groups_of_unequal_size_give_each_sample_the_same_advantage_in_any_order(settings: dict[str, Any]) -> None:
    straight = run(settings, REWARDS, GROUPS)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(REWARDS)).tolist()
        permuted = run(settings, [REWARDS[i] for i in order], [GROUPS[i] for i in order])
        assert permuted == [straight[i] for i in order]


@COMPARED
def test_a_group_of_equal_rewards_teaches_nothing(settings: dict[str, Any]) -> None:
    assert run(settings, [0.1] * 3 + [1.0], ["a"] * 3 + [None], baseline=0.5) == [0.0, 0.0, 0.0, 0.5]


@COMPARED
def test_who_has_nobody_to_be_compared_with_falls_back_to_the_running_baseline(settings: dict[str, Any]) -> None:
    got = run(settings, [1.0, -1.0, 0.5, 1.0], ["alone", None, None, "other"], baseline=0.25)
    assert got == [0.75, -1.25, 0.25, 0.75]


@COMPARED
def test_members_whose_reward_does_not_count_are_left_out_of_their_group(settings: dict[str, Any]) -> None:
    mask = [True, True, False, True, False]
    got = run(settings, [1.0, -1.0, 50.0, 0.25, 9.0], ["a", "a", "a", "b", "b"], mask, baseline=0.5)
    pair = run(settings, [1.0, -1.0], ["a", "a"])
    assert got == [pair[0], pair[1], 0.0, -0.25, 0.0]


def test_two_answers_scaled_by_their_own_deviation_are_a_root_half_apart() -> None:
    deviation = math.sqrt(2.0) + 1e-6
    assert run(GRPO, [1.0, -1.0], ["a", "a"]) == pytest.approx([1 / deviation, -1 / deviation], rel=1e-12)


def test_rewards_that_differ_by_rounding_do_not_blow_up() -> None:
    got = run(GRPO, [0.1, 0.1 + 1e-12, 0.1], ["a"] * 3)
    assert max(map(abs, got)) < 1e-5


def test_the_running_baseline_is_applied_before_it_is_updated() -> None:
    config = AdvantageConfig(baseline="running", baseline_decay=0.9)
    rewards_B, everyone, groups = np.array([1.0, 1.0, 1.0, -1.0]), np.ones(4, dtype=np.bool_), [None] * 4
    first, state = advantages(rewards_B, everyone, groups, INITIAL_STATE, config)
    assert first.tolist() == [1.0, 1.0, 1.0, -1.0]
    assert state == pytest.approx({"baseline": 0.05})
    second, state = advantages(rewards_B, everyone, groups, state, config)
    assert second.tolist() == pytest.approx([0.95, 0.95, 0.95, -1.05])
    assert state == pytest.approx({"baseline": 0.095})
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("settings", [{}, GRPO, RLOO])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_baseline_moves_by_its_decay_towards_the_rewards_that_count(settings: Any, decay: float) -> None:
    config = AdvantageConfig(**settings, baseline_decay=decay)
    mask = np.array([True, False, True])
    _, state = advantages(np.array([1.0, -9.0, 0.5]), mask, ["a", "a", "a"], {"baseline": 0.25}, config)
    assert state == pytest.approx({"baseline": decay * 0.25 + (1 - decay) * 0.75})
    nobody = np.zeros(3, dtype=np.bool_)
    got, same = advantages(np.array([1.0, 2.0, 3.0]), nobody, ["a", "a", "a"], {"baseline": 0.25}, config)
    assert got.tolist() == [0.0, 0.0, 0.0] and same == {"baseline": 0.25}


def test_without_a_baseline_the_advantage_is_the_reward_where_it_counts() -> None:
    assert run({"baseline": "none"}, [1.0, -0.5, 1.0], ["a"] * 3, [True, True, False], 0.7) == [1.0, -0.5, 0.0]


@pytest.mark.parametrize("settings", [{"baseline": "none"}, {}, GRPO, RLOO])
def test_an_empty_batch_has_no_advantages_and_moves_nothing(settings: dict[str, Any]) -> None:
    assert run(settings, [], [], baseline=0.2) == []


@pytest.mark.parametrize("name", builtin_names())
def test_every_method_passes_its_settings_and_state_on_or_looks_at_no_reward(name: str) -> None:
    rewards_B, mask_B, groups = np.array([1.0, -1.0]), np.ones(2, dtype=np.bool_), ["a", "a"]
    if name.startswith("opd"):
        one = build_method(method_class(name).Config())
        got, state = one.advantages(rewards_B, mask_B, groups, one.initial_state())
        assert got.tolist() == [0.0, 0.0] and state == {}
        return
    one = build_method(method_class(name).Config(**RLOO, baseline_decay=0.5))
    got, state = one.advantages(rewards_B, mask_B, groups, {"baseline": 1.0})
    assert one.initial_state() == {"baseline": 0.0}
    assert got.tolist() == [2.0, -2.0] and state == {"baseline": 0.5}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"baseline": "group", "normalize": True}, "group_size 1 .* zero; set group_size to 2 or more"),
        ({"baseline": "leave_one_out"}, "leave_one_out compares .* set group_size to 2 or more"),
        ({"group_size": 2}, "group_size 2 belongs to baseline: group or leave_one_out, not to running; set it to 1"),
        ({"baseline": "none", "group_size": 4}, "group_size 4 belongs to .*, not to none; set it to 1"),
        ({"normalize": True}, "normalize belongs to baseline: group, not to running; set it to false"),
        ({**RLOO, "normalize": True}, "normalize belongs to baseline: group, not to leave_one_out"),
    ],
)
def test_settings_that_would_teach_nothing_are_refused_with_the_remedy(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        AdvantageConfig(**settings)
