"""Commands that start no server: check a file, a judge or a plug-in, write a version out."""

import enum
import os
from pathlib import Path
from typing import Annotated

import typer

from clawrl.cli.shared import AsJson, console, errors, fail, show_json

app = typer.Typer()


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Deployment files, such as deployments/laptop.yaml.")],
) -> None:
    """Validate deployment files, show the placement that each needs, and what several cannot share. Starts nothing."""
    from clawrl.check import check_file, render_placement
    from clawrl.check.clashes import clashes
    from clawrl.check.clusters import advice
    from clawrl.check.machine import look

    reports = [check_file(file) for file in files]
    claims = [report.claims for report in reports if report.claims is not None]
    problems = [f"{report.file}: {problem}" for report in reports for problem in report.problems] + clashes(claims)
    for problem in problems:
        errors.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    for report in reports:
        for note in report.notes:
            console.print(f"{report.file}: {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    for one in claims:
        seen = look(one, os.environ)
        for warning in seen.warnings:
            errors.print(f"{one.file}: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        for note in seen.notes:
            console.print(f"{one.file}: {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if len(claims) > 1 and (line := advice(os.environ.get("RAY_ADDRESS"))) is not None:
        errors.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for report in reports:
        if report.needs:
            console.print(render_placement(report))
    if problems:
        raise typer.Exit(1)


@app.command()
def calibrate(
    cases: Annotated[Path, typer.Argument(help="One JSON object a line: request, response, evidence, label.")],
    deployment: Annotated[Path, typer.Option(help="Whose judge.")] = Path("deployments/laptop.yaml"),
    as_json: AsJson = False,
) -> None:
    """How far a deployment's judge can be trusted, on cases whose answer is known. Starts no server."""
    from clawrl.calibrate import calibrate_deployment
    from clawrl.judging.calibration import CalibrationError, tables
    from clawrl.judging.errors import JudgeError

    try:
        report = calibrate_deployment(deployment, cases)
    except (CalibrationError, JudgeError) as error:
        fail(str(error))
    if as_json:
        return show_json(report.as_dict())
    for table in tables(report):
        console.print(table)


@app.command("export")
def export_version(
    target: Annotated[Path, typer.Argument(help="The folder to write; it must not be there yet.")],
    deployment: Annotated[Path, typer.Option(help="Whose policy.")] = Path("deployments/laptop.yaml"),
    version: Annotated[int | None, typer.Option(min=0, help="Which; the one that serves otherwise.")] = None,
) -> None:
    """Write a trained version as a plain Hugging Face folder. The deployment may run meanwhile."""
    from clawrl.export import ExportError, export_file

    try:
        written = export_file(deployment, target, version)
    except (ExportError, OSError) as error:
        fail(str(error))
    console.print(f"version {written.version} (step {written.step}) is in {target}", markup=False, highlight=False)


class Kind(enum.StrEnum):
    METHOD = "method"
    REWARD = "reward"
    HINTS = "hints"
    FILTER = "filter"
    LOSS = "loss"


@app.command()
def contract(
    kind: Annotated[Kind, typer.Argument(help="What it is to be.")],
    path: Annotated[str, typer.Argument(help="Your code, as package.module:name.")],
) -> None:
    """Does your own method, reward, hint source, filter or loss keep its contract?"""
    from clawrl.contracts.run import run_contract

    try:
        report = run_contract(kind, path)
    except ValueError as error:
        fail(str(error))
    for row in report.rows:
        mark = "[green]kept[/]  " if row.passed else "[bold red]BROKEN[/]"
        console.print(f"{mark} {row.check}", highlight=False)
        if row.detail:
            console.print(f"       {row.detail}", markup=False, highlight=False, soft_wrap=True)
    if not report.passed:
        raise typer.Exit(1)
