"""The learning bench: every method on every preference with every seed, each a run of the real graph of its own.

A finished run is one JSON file in ``output/runs``; it is skipped the next time, so an interrupted bench goes on where
it was. A run that fails says why, keeps its folder in ``output/work``, and is tried again the next time; the others go
on. After every run the report is written anew: ``table.md``, ``results.json`` and the plots. It holds every run of the
folder, those of earlier calls too, and all of them were made from the same deployment, with as many sessions and users:
the bench refuses to go on in a folder with others.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from clawrl.client import ApiProblem
from clawrl.evaluation.learning_limits import collapse_problems
from clawrl.evaluation.learning_plan import COMMON, LearningOptions, RunPlan, plan_facts
from clawrl.evaluation.learning_report import results, table
from clawrl.evaluation.learning_run import run_one
from clawrl.evaluation.live_graph import RunProblem

# From a plan and its folder to the figures of the run; a test runs something quicker.
Runner = Callable[[RunPlan, Path], dict[str, Any]]


def run_bench(options: LearningOptions, console: Console, runner: Runner | None = None) -> int:
    """0 if every run that was asked for has a result now, and none that trained on past holding collapsed."""
    say = partial(console.print, style="dim", markup=False, highlight=False, soft_wrap=True)
    failed: dict[str, str] = {}
    try:
        document = _read(options.deployment)
        plans = options.plans(document)
        refuse_others(plans, options.output)
        todo = [plan for plan in plans if not _file(plan, options.output).exists()]
        if runner is None:
            runner = partial(_run_live, document, say)
    except (RunProblem, ValueError, OSError) as error:
        console.print(f"bench: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    say(f"{len(plans)} runs, {len(plans) - len(todo)} of them finished already")
    for number, plan in enumerate(todo, 1):
        say(f"run {number} of {len(todo)}: {plan.name}")
        try:
            figures = runner(plan, options.output / "work" / plan.name)
        except (RunProblem, ApiProblem) as error:
            failed[plan.name] = str(error)
            console.print(f"{plan.name} failed: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        else:
            _keep(figures, _file(plan, options.output))
        write_report(options, failed)
    if not todo:
        write_report(options, failed)
    console.print((options.output / "table.md").read_text(), markup=False, highlight=False)
    finished = [file for plan in plans if (file := _file(plan, options.output)).exists()]
    collapsed = [file for file in finished if collapse_problems(json.loads(file.read_text()))]
    return 1 if failed or collapsed else 0


def write_report(options: LearningOptions, failed: Mapping[str, str]) -> None:
    """From the files of finished runs; `refuse_others` has seen to it that they belong together."""
    from clawrl.evaluation.learning_plot import write_plots

    runs = [json.loads(file.read_text()) for file in sorted((options.output / "runs").glob("*.json"))]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "table.md").write_text(table(runs, failed))
    (options.output / "results.json").write_text(json.dumps(results(runs, failed), indent=2) + "\n")
    write_plots(runs, options.output)


def refuse_others(plans: Sequence[RunPlan], output: Path) -> None:
    """Raises `RunProblem` for a finished run that differs from these plans in what all runs of a report share, or that
    has the name of one of them and differs in anything at all."""
    common = {name: plan_facts(plans[0])[name] for name in COMMON}
    wanted = {_file(plan, output): plan_facts(plan) for plan in plans}
    for file in sorted((output / "runs").glob("*.json")):
        made_with = json.loads(file.read_text())["plan"]
        differ = [name for name, value in wanted.get(file, common).items() if made_with.get(name) != value]
        if differ:
            raise RunProblem(
                f"{file} was made with other settings ({', '.join(sorted(differ))}); move it away, or choose another "
                "--output"
            )


def _read(deployment: Path) -> Any:
    try:
        return yaml.safe_load(deployment.read_text())
    except yaml.YAMLError as error:
        raise RunProblem(f"{deployment} is not YAML: {error}") from error


def _keep(figures: Mapping[str, Any], file: Path) -> None:
    """Whole or not at all: a file that is there is a finished run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".partial")
    scratch.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    scratch.rename(file)


def _file(plan: RunPlan, output: Path) -> Path:
    return output / "runs" / f"{plan.name}.json"


def _run_live(document: Mapping[str, Any], say: Callable[[str], None], plan: RunPlan, folder: Path) -> dict[str, Any]:
    return run_one(plan, document, folder, say)
