"""The plans of the learning bench, the deployments they make, and when a run is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench.learning import parse
from clawrl.config import Deployment
from clawrl.evaluation.demo_users import Record
from clawrl.evaluation.learning_plan import (
    METHODS,
    LearningOptions,
    digest,
    method_block,
    run_document,
)
from clawrl.evaluation.learning_run import Ending
from clawrl.evaluation.observations import Observations
from tests.learning_kit import DOCUMENT, LAPTOP, PLAN, first


def test_the_whole_bench_is_every_method_on_every_preference_with_every_seed() -> None:
    plans = parse([]).plans(DOCUMENT)
    assert len(plans) == len({plan.name for plan in plans}) == 7 * 3 * 3
    assert {plan.sessions for plan in plans} == {240}


def test_the_quick_bench_is_two_runs_and_what_is_asked_for_wins() -> None:
    assert [(plan.name, plan.sessions) for plan in parse(["--quick"]).plans(DOCUMENT)] == [
        ("none-one_sentence-0", 64), ("combine-one_sentence-0", 64),
    ]  # fmt: skip
    asked = parse(["--quick", "--methods", "combine, opd", "--seeds", "2", "--sessions", "9", "--past", "100"])
    assert [(plan.name, plan.sessions) for plan in asked.plans(DOCUMENT)] == [
        ("combine-one_sentence-2-past100", 9), ("opd-one_sentence-2-past100", 9),
    ]  # fmt: skip


def test_an_unknown_preference_is_told_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"no preference 'brevity'.*one_sentence, no_lists, next_step"):
        LearningOptions(deployment=LAPTOP, output=Path("x"), preferences=("brevity",)).plans(DOCUMENT)


def test_a_bench_of_nothing_is_told_which_names_are_missing() -> None:
    with pytest.raises(ValueError, match="nothing to run: seeds names none"):
        LearningOptions(deployment=LAPTOP, output=Path("x"), seeds=()).plans(DOCUMENT)


def test_a_deployment_is_known_by_its_values_and_not_by_their_order() -> None:
    assert digest({"a": 1, "b": {"c": [1, 2]}}) == digest({"b": {"c": [1, 2]}, "a": 1})
    other = yaml.safe_load(LAPTOP.read_text())
    assert digest(other) == digest(DOCUMENT) and len(digest(other)) == 12
    other["applications"][0]["args"]["trainer"]["training"]["learning_rate"] = 0.1
    assert digest(other) != digest(DOCUMENT)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gets_a_deployment_that_is_valid(method: str) -> None:
    document = yaml.safe_load(LAPTOP.read_text())
    document["applications"][0]["args"]["judge"]["hints"] = {"source": "quoting"}
    made = run_document(document, replace(PLAN, method=method, seed=7))
    args = Deployment.model_validate(made["applications"][0]["args"])
    assert args.trainer.training.seed == args.policy.engine.seed == 7
    if method in ("none", "prompt"):
        assert (
            made["applications"][0]["args"]["trainer"]["method"]
            == document["applications"][0]["args"]["trainer"]["method"]
        )
    else:
        assert args.trainer.method.name == method
    assert "seed" not in document["applications"][0]["args"]["policy"]["engine"], "the original is as it was"


def test_settings_carry_over_to_another_method_only_where_it_has_them() -> None:
    block = {"name": "combine", "kl_coef": 0.25, "no_such_setting": 1}
    assert method_block(block, "combine") == block
    assert method_block(block, "binary_rl") == {"name": "binary_rl", "kl_coef": 0.25}
    with pytest.raises(ValueError, match="magic"):
        method_block(block, "magic")


def test_only_the_prompt_method_has_a_system_prompt_and_only_methods_train() -> None:
    plans = {method: replace(PLAN, method=method) for method in METHODS}
    assert {method for method, plan in plans.items() if plan.system} == {"prompt"}
    assert plans["prompt"].system == PLAN.wish.instruction
    assert {method for method, plan in plans.items() if not plan.trains} == {"none", "prompt"}


# When a run is over.


def seen_at(step: int, accepted: str, paused: str | None = None) -> Observations:
    answers = [first(number, accepted=mark == "1") for number, mark in enumerate(accepted, 1)]
    status = {"step": step, "paused": paused is not None, "pause_reason": paused}
    return Observations(record=Record(answers=answers), status=status)


def test_a_run_past_holding_ends_so_many_updates_after_the_moment_it_held() -> None:
    ending = Ending(replace(PLAN, past=10))
    assert ending(seen_at(3, "0011")) is None
    assert ending(seen_at(5, "00111")) is None
    assert ending(seen_at(14, "0011100")) is None, "it may lapse"
    assert "10 updates past" in str(ending(seen_at(15, "0011100")))
    assert ending.held_at_step == 5


def test_a_run_past_holding_ends_when_the_preference_never_held() -> None:
    ending = Ending(replace(PLAN, past=10, sessions=4))
    assert ending(seen_at(99, "010")) is None
    assert "did not hold within 4 sessions" in str(ending(seen_at(99, "0101")))


def test_an_alarm_ends_a_run_past_holding_and_is_only_noted_in_others() -> None:
    past, plain, untrained = (
        Ending(replace(PLAN, **changes)) for changes in ({"past": 10}, {}, {"method": "none"})
    )  # fmt: skip
    alarmed = seen_at(3, "0", paused="answers became short")
    assert past(alarmed) == "training was paused: answers became short"
    assert plain(alarmed) is None and plain.stopped_by == "answers became short"
    assert untrained(alarmed) is None and untrained.stopped_by is None, "its pause is our own"
