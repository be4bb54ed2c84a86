"""The learning bench without a server: its plans, its deployments, its figures, its report, and going on later."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from bench.learning import parse
from clawrl.config import Deployment
from clawrl.evaluation.blocks import blocks, by_version, sessions_until_held, spread_out
from clawrl.evaluation.demo_users import Answer, Record
from clawrl.evaluation.learning import run_bench
from clawrl.evaluation.learning_figures import bounds, buckets_of, run_figures
from clawrl.evaluation.learning_limits import collapse_problems
from clawrl.evaluation.learning_plan import (
    METHODS,
    LearningOptions,
    RunPlan,
    digest,
    method_block,
    plan_facts,
    run_document,
)
from clawrl.evaluation.learning_report import sessions_seen, spread, table, until_held
from clawrl.evaluation.learning_run import Ending, run_one
from clawrl.evaluation.live_graph import RunProblem
from clawrl.evaluation.measures import Measures
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.probes import PROBES, knows, probe_figures
from clawrl.evaluation.user_words import Objection

LAPTOP = Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml"
DOCUMENT = yaml.safe_load(LAPTOP.read_text())
PLAN = RunPlan(
    method="combine", preference="one_sentence", seed=1, sessions=40, time_limit_s=60.0, users=8, past=0,
    deployment=digest(DOCUMENT), measured_per_version=8,
)  # fmt: skip


def first(number: int, accepted: bool = True, version: int | None = 0, **changes: Any) -> Answer:
    facts: dict[str, Any] = {
        "kind": "talk", "user": 0, "session": f"s{number}", "turn_id": f"t{number}", "question": f"q{number}",
        "message": "q", "text": "x", "words": number, "finish_reason": "stop", "version": version,
        "objection": None if accepted else Objection.TOO_LONG, "seconds": 1.0, "first_token_s": 0.1,
        "session_number": number, "first": True,
    }  # fmt: skip
    return Answer(**(facts | changes))


def measures(fluency: float) -> Measures:
    return Measures(turns=8, tokens=9.0, fluency=fluency, lift=0.5, kl=-fluency / 10)


# Blocks and moments.


def test_blocks_cut_first_answers_in_order_and_keep_a_short_rest() -> None:
    cut = blocks([first(n, accepted=n > 2, finish_reason="length" if n == 5 else "stop") for n in range(1, 6)], size=2)
    assert [(block.begins, block.answers) for block in cut] == [(1, 2), (3, 2), (5, 1)]
    assert [block.accepted_share for block in cut] == [0.0, 1.0, 1.0]
    assert [block.mean_words for block in cut] == [1.5, 3.5, 5.0]
    assert [block.truncated_share for block in cut] == [0.0, 0.0, 1.0]
    assert blocks([]) == []


@pytest.mark.parametrize(
    ("accepted", "held"), [("0111", 4), ("110111", 6), ("1101", None), ("", None), ("111000", 3), ("0110110", None)]
)
def test_a_preference_holds_with_the_third_accepted_answer_in_a_row(accepted: str, held: int | None) -> None:
    answers = [first(number, accepted=mark == "1") for number, mark in enumerate(accepted, 1)]
    assert sessions_until_held(answers) == held


def test_answers_are_grouped_by_version_and_thinned_out_evenly() -> None:
    answers = [first(n, version=v) for n, v in enumerate([0, 1, None, 0, 2], 1)]
    assert {v: [a.session_number for a in given] for v, given in by_version(answers).items()} == {
        0: [1, 4], 1: [2], 2: [5],
    }  # fmt: skip
    many = [first(number) for number in range(1, 11)]
    assert [answer.session_number for answer in spread_out(many, 4)] == [1, 3, 6, 8]
    assert spread_out(many[:3], 4) == many[:3]


# Plans and deployments.


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


# Figures.


def a_run(plan: RunPlan = PLAN, **changes: Any) -> dict[str, Any]:
    answers = [first(number, accepted=number > 20, version=number // 10) for number in range(1, 41)]
    seen = Observations(record=Record(answers=answers), status={"step": 4}, ended="all sessions")
    measured = {"first": measures(-2.0), "last": measures(-1.0), "v0": measures(-2.0), "v3": measures(-3.0)}
    probes = {name: probe_figures([], {}) for name in ("before", "after")}
    tokens = {f"t{number}": 2 * number for number in range(1, 41)}
    return {**run_figures(plan, seen, measured, tokens, probes, None, 1), **changes}


def test_the_figures_of_a_run_are_over_its_first_answers() -> None:
    figures = a_run()
    json.dumps(figures)
    assert figures["sessions"] == 40 and figures["sessions_until_held"] == 23 and figures["updates"] == 4
    assert figures["updates_past_held"] == 3
    assert figures["first"]["accepted_share"] == 0.0 and figures["last"]["accepted_share"] == 1.0
    assert figures["first"]["mean_words"] == 8.5 and figures["first"]["mean_tokens"] == 17.0
    assert figures["first"]["fluency"] == -2.0 and figures["last"]["kl"] == pytest.approx(0.1)
    assert [row["version"] for row in figures["by_version"]] == [0, 1, 2, 3, 4]
    assert [row["fluency"] for row in figures["by_version"]] == [-2.0, None, None, -3.0, None]
    assert figures["by_version"][0]["accepted_share"] == 0.0 and figures["by_version"][3]["accepted_share"] == 1.0


def test_bounds_are_the_worst_of_what_came_after_the_preference_held() -> None:
    held = a_run()["after_held"]
    assert held["sessions"] == 17 and held["least_accepted"] == 1.0
    assert held["least_fluency"] == -3.0, "of version 3; version 0 came before"
    never = [first(number, accepted=False) for number in range(1, 5)]
    assert run_figures(PLAN, Observations(record=Record(answers=never)), {}, {}, {}, None, None)["after_held"] is None


def test_bounds_are_over_stretches_of_32_answers_and_a_rest_joins_the_last() -> None:
    answers = [first(number, accepted=number <= 16, words=9 if number <= 32 else 1) for number in range(1, 65)]
    whole, short, rest = bounds(answers, []), bounds(answers[32:40], []), bounds(answers[:40], [])
    assert whole is not None and short is not None and rest is not None
    assert (whole["sessions"], whole["least_accepted"], whole["fewest_words"]) == (64, 0.0, 1.0)
    assert (short["sessions"], short["least_accepted"], short["fewest_words"]) == (8, 0.0, 1.0)
    assert (rest["least_accepted"], rest["fewest_words"]) == (0.4, (32 * 9 + 8) / 40)


def test_what_the_frozen_model_says_is_bounded_over_versions_of_32_answers_together() -> None:
    rows = [
        {"version": 0, "measured": 32, "fluency": -9.0, "lift": -9.0, "kl": 9.0},
        {"version": 1, "measured": 24, "fluency": -1.0, "lift": 0.5, "kl": 0.1},
        {"version": 2, "measured": 8, "fluency": -3.0, "lift": None, "kl": 0.5},
        {"version": 3, "measured": 40, "fluency": -1.2, "lift": 0.4, "kl": 0.15},
        {"version": 4, "measured": 0, "fluency": None, "lift": None, "kl": None},
    ]
    worst = bounds([first(1, version=1)], rows)
    assert worst is not None
    assert worst["least_fluency"] == pytest.approx(-1.5) and worst["most_kl"] == pytest.approx(0.2)
    assert worst["least_lift"] == 0.4
    nothing = bounds([first(1, version=4)], rows)
    assert nothing is not None and nothing["least_fluency"] is None


# Past holding.


def a_past_run(**after_held: Any) -> dict[str, Any]:
    """At the very limits, with an untaught policy of fluency -2.0 and lift 0.5."""
    limits = {
        "sessions": 32, "least_accepted": 0.5, "fewest_words": 5.0, "most_words": 9.0, "most_truncated": 0.5,
        "least_fluency": -2.5, "least_lift": 0.25, "most_kl": 2.0,
    }  # fmt: skip
    return a_run(replace(PLAN, past=3), after_held=limits | after_held)


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


# Probes.


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("What is 7 plus 5?", "It is 12.", True),
        ("What is 7 plus 5?", "Twelve, I think", True),
        ("What is 7 plus 5?", "It is 112.", False),
        ("What is the capital of France?", "paris!", True),
        ("Spell the word 'cat' letter by letter.", "Sure: C-A-T.", True),
        ("List three kinds of fruit.", "12", None),
    ],
)
def test_a_known_answer_counts_as_words_of_its_own(prompt: str, text: str, expected: bool | None) -> None:
    assert knows(first(1, question=prompt, text=text)) is expected


def test_probe_figures_are_shares_of_what_was_asked() -> None:
    answers = [
        first(1, question="What is 7 plus 5?", text="12"),
        first(3, question="How much is 6 times 4?", text="25", finish_reason="length"),
        first(5, question="List three kinds of fruit."),
    ]
    figures = probe_figures(answers, {"t1": measures(-1.0), "t5": measures(-2.0)})
    assert figures["known_share"] == 0.5 and figures["finished_share"] == pytest.approx(2 / 3)
    assert figures["mean_words"] == 3.0 and figures["fluency"] == -1.5 and figures["lift"] == 0.5


def test_there_are_twenty_different_probes_and_most_have_a_known_answer() -> None:
    assert len({probe.prompt for probe in PROBES}) == 20
    assert sum(bool(probe.known) for probe in PROBES) == 15


# The report.


def test_a_cell_is_the_median_with_its_spread() -> None:
    assert spread([0.5, None, 0.25, 0.75], 2) == "0.50 (0.25..0.75)"
    assert spread([0.5], 1) == "0.5" and spread([None], 2) == "-"


@pytest.mark.parametrize(
    ("outcomes", "cell"),
    [
        ([(30, 40), (20, 40), (None, 16)], "30 (20..>16); never in 1 of 3"),
        ([(20, 40), (None, 16), (None, 40)], ">16 (20..>40); never in 2 of 3"),
        ([(None, 40), (None, 16)], ">16 (>16..>40); never in 2 of 2"),
        ([(20, 40), (None, 16)], ">16 (20..>16); never in 1 of 2"),
        ([(20, 40), (31, 40)], "26 (20..31)"),
        ([(20, 40)], "20"),
        ([(None, 40)], ">40; never in 1 of 1"),
    ],
)
def test_a_preference_that_never_held_counts_as_later_than_any_however_early_its_run_ended(
    outcomes: list[tuple[int | None, int]], cell: str
) -> None:
    assert until_held([a_run(sessions_until_held=held, sessions=seen) for held, seen in outcomes]) == cell


def test_runs_of_a_cell_that_are_not_equally_long_are_said_to_be() -> None:
    runs = [a_run(replace(PLAN, seed=seed), sessions=seen) for seed, seen in enumerate((40, 16, 40))]
    assert sessions_seen(runs) == "16 to 40, unequal" and sessions_seen(runs[:1]) == "40"
    assert "| 16 to 40, unequal |" in table(runs, {})


def test_the_table_has_a_row_a_method_and_says_what_went_wrong() -> None:
    runs = [a_run(replace(PLAN, seed=seed)) for seed in (0, 1)]
    runs += [a_run(replace(PLAN, method="none"), stopped_by="answers became short", ended="time limit")]
    runs += [a_run(replace(PLAN, past=50), ended="50 updates past the moment")]
    shown = table(runs, {"opd-one_sentence-0": "the server ended"})
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    header = rows[0]
    assert all(len(row) == len(header) for row in rows[:4])
    last = [line for line in shown.splitlines() if line.startswith("| one_sentence")]
    assert len(last) == 1 and last[0].endswith("| 1 of 1 COLLAPSED |")
    assert "seed 1, past holding: 3 updates were applied past holding, 50 wanted" in shown
    combine = dict(zip(header, rows[2], strict=True))
    assert combine["seeds"] == "2" and combine["accepted, last 16"] == "1.00 (1.00..1.00)"
    assert any(row[0] == "| none" for row in rows)
    assert "Past the moment" in shown and "50 updates past the moment" in shown
    for note in ("opd-one_sentence-0 FAILED: the server ended", "an alarm paused training", "ended by time limit"):
        assert note in shown


# Going on.


@pytest.fixture
def console() -> Console:
    return Console(width=200, record=True, file=io.StringIO())


class Runs:
    """Stands for real runs: notes what it was asked for, and fails for one method."""

    def __init__(self, broken: str | None = None) -> None:
        self.asked: list[str] = []
        self.broken = broken

    def __call__(self, plan: RunPlan, folder: Path) -> dict[str, Any]:
        self.asked.append(plan.name)
        if plan.method == self.broken:
            raise RunProblem("the server ended before it was ready")
        return a_run(plan)


def options(output: Path, **changes: Any) -> LearningOptions:
    return LearningOptions(
        deployment=LAPTOP, output=output, preferences=("one_sentence",), seeds=(0,), sessions=40,
        **({"methods": ("none", "opd", "combine")} | changes),
    )  # fmt: skip


def results(output: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((output / "results.json").read_text())
    return found


def test_a_failed_run_says_why_and_the_others_go_on_and_only_it_is_tried_again(
    tmp_path: Path, console: Console
) -> None:
    runs = Runs(broken="opd")
    assert run_bench(options(tmp_path), console, runs) == 1
    assert [run["plan"]["method"] for run in results(tmp_path)["runs"]] == ["combine", "none"]
    assert results(tmp_path)["failed"] == {"opd-one_sentence-0": "the server ended before it was ready"}
    assert "the server ended before it was ready" in console.export_text()
    mended = Runs()
    assert run_bench(options(tmp_path), console, mended) == 0
    assert mended.asked == ["opd-one_sentence-0"]
    assert len(results(tmp_path)["runs"]) == 3 and results(tmp_path)["failed"] == {}
    for name in ("accepted", "health"):
        assert (tmp_path / f"{name}-one_sentence.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_bench_runs_nothing_and_reports_again(tmp_path: Path, console: Console) -> None:
    run_bench(options(tmp_path, methods=("none",)), console, Runs())
    (tmp_path / "table.md").unlink()
    again = Runs()
    assert run_bench(options(tmp_path, methods=("none",)), console, again) == 0
    assert again.asked == [] and "## one_sentence" in (tmp_path / "table.md").read_text()


def test_results_of_other_settings_are_never_mixed_in(tmp_path: Path, console: Console) -> None:
    run_bench(replace(options(tmp_path, methods=("none",)), sessions=39), console, Runs())
    again = Runs()
    assert run_bench(options(tmp_path), console, again) == 1
    shown = console.export_text()
    assert again.asked == [] and "other settings (sessions)" in shown and "another --output" in shown
    # Whatever the name of the run that was made otherwise.
    assert run_bench(options(tmp_path, methods=("combine",)), console, again) == 1
    assert again.asked == [] and "other settings (sessions)" in console.export_text()


@pytest.mark.parametrize("methods", [("none",), ("combine",)])
def test_results_of_another_deployment_are_never_mixed_in_whatever_its_file_is_called(
    tmp_path: Path, console: Console, methods: tuple[str, ...]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(LAPTOP.read_text())
    asked = replace(options(tmp_path / "out", methods=("none",)), deployment=file)
    assert run_bench(asked, console, Runs()) == 0
    file.write_text("# Only a remark.\n" + LAPTOP.read_text())
    again = Runs()
    assert run_bench(asked, console, again) == 0 and again.asked == []
    document = yaml.safe_load(LAPTOP.read_text())
    document["applications"][0]["args"]["trainer"]["training"]["learning_rate"] = 0.1
    file.write_text(yaml.safe_dump(document))
    assert run_bench(replace(asked, methods=methods), console, again) == 1
    assert again.asked == [] and "none-one_sentence-0.json was made with other settings (deployment)" in " ".join(
        console.export_text().split()
    )


def test_a_bench_that_measures_more_answers_of_a_version_is_another_one(tmp_path: Path, console: Console) -> None:
    run_bench(options(tmp_path, methods=("none",)), console, Runs())
    again = Runs()
    assert run_bench(options(tmp_path, methods=("combine",), measured_per_version=9), console, again) == 1
    assert again.asked == [] and "other settings (measured_per_version)" in console.export_text()


def test_a_run_past_holding_that_collapsed_fails_the_bench_each_time_and_says_why(
    tmp_path: Path, console: Console
) -> None:
    def collapsing(plan: RunPlan, folder: Path) -> dict[str, Any]:
        worst = {**a_past_run()["after_held"], "fewest_words": 1.0}
        return a_run(plan, after_held=worst if plan.method == "combine" else a_past_run()["after_held"])

    assert run_bench(options(tmp_path, methods=("opd",), past=3), console, collapsing) == 0
    for _ in ("made", "found finished"):
        assert run_bench(options(tmp_path, methods=("combine",), past=3), console, collapsing) == 1
        assert "past holding: fewest words: 1.00, at least 5.00 wanted" in console.export_text()
    assert run_bench(options(tmp_path, methods=("opd",), past=3), console, collapsing) == 0, "it was not asked for"


def test_an_interrupted_write_leaves_no_finished_run(tmp_path: Path, console: Console) -> None:
    class Unwritable(Runs):
        def __call__(self, plan: RunPlan, folder: Path) -> dict[str, Any]:
            return {**a_run(plan), "odd": {1, 2}}

    with pytest.raises(TypeError):
        run_bench(options(tmp_path), console, Unwritable())
    assert list((tmp_path / "runs").glob("*.json")) == []


def test_a_deployment_file_that_is_not_there_or_no_yaml_is_told(tmp_path: Path, console: Console) -> None:
    missing = replace(options(tmp_path), deployment=tmp_path / "none.yaml")
    assert run_bench(missing, console) == 1
    assert "none.yaml" in console.export_text()
    (tmp_path / "none.yaml").write_text("applications: [")
    assert run_bench(missing, console) == 1
    assert "none.yaml is not YAML" in " ".join(console.export_text().split())


def test_an_unknown_method_fails_its_run_before_a_server_starts(tmp_path: Path) -> None:
    document = yaml.safe_load(LAPTOP.read_text())
    with pytest.raises(RunProblem, match="magic"):
        run_one(replace(PLAN, method="magic"), document, tmp_path / "work", lambda text: None)
    assert not (tmp_path / "work" / "server.log").exists()


def test_the_facts_of_a_plan_are_what_a_finished_run_is_known_by() -> None:
    assert plan_facts(PLAN) == json.loads(json.dumps(plan_facts(PLAN)))
    assert {name for name in plan_facts(PLAN)} >= {
        "method", "preference", "seed", "sessions", "past", "deployment", "measured_per_version",
    }  # fmt: skip
