"""Past the moment a preference held: what counts as sound."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.evaluation.learning_figures import buckets_of
from clawrl.evaluation.learning_limits import collapse_problems
from clawrl.evaluation.learning_plan import (
    plan_facts,
)
from tests.learning_kit import PLAN, a_past_run, first


def test_a_run_past_holding_at_the_very_limits_is_sound() -> None:
    assert collapse_problems(a_past_run()) == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("least_accepted", 0.49, "least accepted: 0.49, at least 0.50 wanted"),
        ("fewest_words", 4.9, "fewest words: 4.90, at least 5.00 wanted"),
        ("most_truncated", 0.51, "most truncated: 0.51, at most 0.50 wanted"),
        ("least_fluency", -2.51, "least fluency: -2.51, at least -2.50 wanted"),
        ("least_lift", 0.24, "least lift: 0.24, at least 0.25 wanted"),
        ("most_kl", 2.01, "most kl: 2.01, at most 2.00 wanted"),
        ("most_kl", None, "most kl: not measured"),
    ],
)
def test_each_limit_past_holding_is_a_problem_of_its_own(name: str, value: float | None, problem: str) -> None:
    assert collapse_problems(a_past_run(**{name: value})) == [problem]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stopped_by": "answers became short"}, "an alarm stopped the training: answers became short"),
        ({"sessions_until_held": None, "after_held": None}, "the preference never held in 40 sessions"),
        ({"after_held": None}, "no session followed once the preference held"),
        (
            {"updates_past_held": 2, "ended": "time limit"},
            "2 updates were applied past holding, 3 wanted (ended: time limit)",
        ),
    ],
)
def test_a_run_past_holding_that_was_stopped_or_saw_too_little_proves_nothing(
    changes: dict[str, Any], problem: str
) -> None:
    assert collapse_problems(a_past_run() | changes) == [problem]


def test_a_run_whose_start_was_not_measured_has_nothing_to_be_compared_with() -> None:
    run = a_past_run()
    run["first"] = run["first"] | {"fluency": None, "lift": None}
    assert collapse_problems(run) == ["least fluency: not measured", "least lift: not measured"]


def test_only_runs_past_holding_have_limits() -> None:
    assert collapse_problems(a_past_run() | {"plan": plan_facts(PLAN), "stopped_by": "answers became short"}) == []


def test_the_frozen_model_is_shown_the_first_the_last_and_a_few_of_each_version() -> None:
    answers = [first(number, version=number // 30) for number in range(1, 41)]
    chosen = buckets_of(answers, per_version=4)
    assert set(chosen) == {"first", "last", "v0", "v1"}
    assert [len(group) for group in chosen.values()] == [16, 16, 4, 4]
    assert chosen["last"] == answers[-16:]
