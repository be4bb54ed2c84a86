"""Running and re-running the learning bench: what is kept, what is tried again, what is never mixed."""

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

from clawrl.evaluation.learning import run_bench
from clawrl.evaluation.learning_plan import (
    LearningOptions,
    RunPlan,
    plan_facts,
)
from clawrl.evaluation.learning_run import run_one
from clawrl.evaluation.live_graph import RunProblem
from tests.learning_kit import LAPTOP, PLAN, a_past_run, a_run


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
