"""The lag of a sample in optimizer steps, and which configurations of it make sense."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from clawrl.training.config import TrainingConfig
from clawrl.training.staleness import StalenessConfig, lag, lag_figures, lag_histogram, most_behind


@pytest.mark.parametrize(
    ("behind", "updates", "expected"), [(0, 1, 0), (1, 1, 1), (5, 1, 5), (0, 4, 3), (1, 4, 7), (2, 3, 8)]
)
def test_the_passes_over_a_batch_count_and_zero_is_on_policy(behind: int, updates: int, expected: int) -> None:
    assert lag(behind, updates) == expected


@pytest.mark.parametrize("updates", [1, 2, 3, 5])
@pytest.mark.parametrize("limit", range(12))
def test_exactly_what_is_within_the_limit_is_admitted(limit: int, updates: int) -> None:
    most = most_behind(limit, updates)
    assert most < 0 or lag(most, updates) <= limit
    assert lag(most + 1, updates) > limit


def test_only_what_can_be_corrected_goes_beyond_max_steps() -> None:
    assert StalenessConfig(max_steps=3).limit == 3
    assert StalenessConfig(max_steps=3, beyond="correct", correct_up_to=20).limit == 20


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"correct_up_to": 9}, "correct_up_to belongs to beyond: correct; remove it"),
        ({"beyond": "correct"}, "beyond: correct needs correct_up_to"),
        ({"max_steps": 9, "beyond": "correct", "correct_up_to": 9}, "correct_up_to 9 must be above max_steps 9"),
        ({"max_steps": -1}, "max_steps"),
        ({"beyond": "keep"}, "'drop' or 'correct'"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        StalenessConfig(**given)


def test_a_limit_below_what_the_passes_take_by_themselves_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match=r"max_steps 2 lets no turn train: .* 4 passes lags 3 steps by itself"):
        TrainingConfig(updates_per_batch=4, staleness={"max_steps": 2})
    assert TrainingConfig(updates_per_batch=4, staleness={"max_steps": 3}).staleness.limit == 3


def test_the_older_key_is_one_error_that_names_the_new_one() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate({"max_staleness": 2, "batch_size": "many"})
    (error,) = caught.value.errors()
    assert "max_staleness is now staleness.max_steps" in error["msg"] and "staleness: {max_steps: 2}" in error["msg"]


def test_the_figures_of_a_step_count_samples_by_lag_and_those_that_need_correcting() -> None:
    config = StalenessConfig(max_steps=2, beyond="correct", correct_up_to=8)
    assert lag_figures([3, 1, 3, 1, 2], config) == {
        "lag": {"1": 2, "2": 1, "3": 2},
        "lag_mean": 2.0,
        "lag_max": 3,
        "lag_corrected": 2,
    }
    assert lag_figures([], config) == {}


def test_the_histogram_of_many_steps_adds_up_in_the_order_of_numbers() -> None:
    steps: list[dict[str, Any]] = [{"lag": {"2": 3, "10": 1}}, {"loss": 1.0}, {"lag": {"9": 1, "2": 1}}]
    assert list(lag_histogram(steps).items()) == [("2", 4), ("9", 1), ("10", 1)]
