"""The `clawrl` command: talk to a server, look at it, pause it; check a file, a judge or a plug-in; run the demo.

A thin edge: every command calls one thing and turns its failure into one line and exit code 1. Heavy
imports (Ray for `check`, matplotlib for `demo`) happen inside the command that needs them.
"""

import enum
import json
import os
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.live import Live

from clawrl.client import DEFAULT_URL, ApiClient, ApiProblem, is_local, unreachable
from clawrl.status_view import render_status

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Serve a language model and train it online.")
console = Console()
errors = Console(stderr=True)

Url = Annotated[str, typer.Option(envvar="CLAWRL_URL", help="The server.")]
Key = Annotated[str | None, typer.Option("--api-key", envvar="CLAWRL_API_KEY", help="The key, if it wants one.")]


def fail(message: str) -> NoReturn:
    errors.print(f"clawrl: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1)


@app.command()
def status(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="The server's own JSON, for programs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 2.0,
) -> None:
    """What the server is doing: version, turns by state, replicas, judge, trainer."""
    with ApiClient(url, api_key) as client:
        try:
            first = client.status()
            if not watch:
                console.print_json(json.dumps(first)) if as_json else console.print(render_status(first))
            elif as_json:
                _watch_lines(client, first, every)
            else:
                _watch_panel(client, first, every)
        except ApiProblem as problem:
            fail(str(problem))
        except KeyboardInterrupt:
            return


def _watch_lines(client: ApiClient, reading: dict[str, Any], every: float) -> None:
    while True:
        console.print(json.dumps(reading), markup=False, highlight=False, soft_wrap=True)
        time.sleep(every)
        reading = client.status()


def _watch_panel(client: ApiClient, reading: dict[str, Any], every: float) -> None:
    with Live(render_status(reading), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(render_status(client.status()), refresh=True)


@app.command("wait-ready")
def wait_ready(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait.")] = 600.0,
    poll: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Return when the server is ready to answer; say meanwhile what is missing."""
    said: tuple[str, ...] | None = None
    with ApiClient(url, api_key) as client:
        for reading in client.wait_ready(timeout, poll):
            if reading.ready:
                console.print(f"ready: {url}")
                return
            if reading.missing != said:
                said = reading.missing
                console.print(f"waiting for {', '.join(said) or 'the server'}", markup=False)
    fail(f"not ready after {timeout:g} s; still missing: {', '.join(said or ('server',))}")


@app.command()
def pause(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    reason: Annotated[str, typer.Option(help="Shown by status.")] = "paused by an operator",
) -> None:
    """Stop feeding turns to the trainer. Serving and recording go on."""
    with ApiClient(url, api_key) as client:
        try:
            client.pause(reason)
        except ApiProblem as problem:
            fail(str(problem))
    console.print("paused: turns are served and recorded, nothing is queued for training")


@app.command()
def resume(url: Url = DEFAULT_URL, api_key: Key = None) -> None:
    """Feed turns to the trainer again, those judged during the pause first."""
    with ApiClient(url, api_key) as client:
        try:
            client.resume()
        except ApiProblem as problem:
            fail(str(problem))
    console.print("resumed")


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
    as_json: Annotated[bool, typer.Option("--json", help="The figures, for programs.")] = False,
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
        console.print_json(json.dumps(report.as_dict()))
        return
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


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The folder to write; it must not be there yet.")],
    deployment: Annotated[Path, typer.Option(help="Whose state.")] = Path("deployments/laptop.yaml"),
) -> None:
    """Copy a deployment's state so that it can be put back. It may run meanwhile; run this where its coordinator is."""
    from clawrl.backup import BackupError, back_up_file

    try:
        made = back_up_file(deployment, target)
    except (BackupError, OSError) as error:
        fail(str(error))
    step = "no checkpoint yet" if made.step is None else f"checkpoint of step {made.step}"
    version = "no version yet" if made.version is None else f"version {made.version}"
    console.print(f"{made.turns} turns, {step}, {version}: in {target}", markup=False, highlight=False, soft_wrap=True)


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


@app.command()
def feedback(
    score: Annotated[float, typer.Argument(min=-1.0, max=1.0, help="-1 bad to 1 good.")],
    turn: Annotated[str | None, typer.Option(help="The turn, by the X-Clawrl-Turn-Id of its answer.")] = None,
    session: Annotated[str | None, typer.Option(help="Or the newest turn of this session.")] = None,
    comment: Annotated[str, typer.Option(help="What would have been better.")] = "",
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Say what an answer was worth; it outranks the judge. A negative score comes after `--`."""
    named = {"turn_id": turn} if turn else {"session_id": session}
    if bool(turn) == bool(session):
        fail("name the answer: either --turn or --session")
    with ApiClient(url, api_key) as client:
        try:
            taken = client.feedback({**named, "score": score, "comment": comment})
        except ApiProblem as problem:
            fail(str(problem))
    said = "it will be learned from" if taken["outcome"] == "taken" else "too late to learn from it"
    console.print(f"turn {taken['turn_id']} ({taken['state']}): {said}", highlight=False)


@app.command()
def chat(
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    session: Annotated[str | None, typer.Option(help="A session id; a new one otherwise.")] = None,
    model: Annotated[str | None, typer.Option(help="The served model; the server's first otherwise.")] = None,
) -> None:
    """Talk to the policy. What you say next is what its last answer is judged by. /quit leaves."""
    session = session or f"chat-{uuid.uuid4().hex[:12]}"
    with ApiClient(url, api_key) as client:
        try:
            model = model or client.model_name()
        except ApiProblem as problem:
            fail(str(problem))
    console.print(f"{model} at {url}, session {session}; /quit to leave", style="dim", markup=False, highlight=False)
    _chat_loop(url, api_key, session, model)


def _chat_loop(url: str, api_key: str | None, session: str, model: str) -> None:
    from openai import APIConnectionError, APIError, DefaultHttpxClient, OpenAI

    http = DefaultHttpxClient(trust_env=not is_local(url))
    client = OpenAI(
        base_url=f"{url.rstrip('/')}/v1", api_key=api_key or "none", max_retries=0, timeout=600.0, http_client=http
    )
    history: list[Any] = []
    with client:
        while (line := _read_line()) is not None:
            if not line:
                continue
            history.append({"role": "user", "content": line})
            try:
                answer = _stream_answer(client, model, history, session)
            except APIConnectionError:
                fail(unreachable(url))
            except APIError as error:
                # Refused, or broken off in mid-stream: either way there is no answer to keep.
                history.pop()
                errors.print(f"clawrl: {error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
                continue
            history.append({"role": "assistant", "content": answer})


def _read_line() -> str | None:
    """One message of the person's, or None when they leave."""
    try:
        line = console.input("[bold green]you>[/] ").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None
    return None if line in {"/quit", "/exit"} else line


def _stream_answer(client: Any, model: str, history: list[Any], session: str) -> str:
    """Print the answer as it comes, then which policy version gave it."""
    pieces: list[str] = []
    versions: list[str] = []
    stream = client.chat.completions.create(
        model=model, messages=history, stream=True, extra_headers={"X-Session-Id": session}
    )
    for chunk in stream:
        if chunk.system_fingerprint and chunk.system_fingerprint not in versions:
            versions.append(chunk.system_fingerprint)
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            console.print(pieces[-1], end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(f"policy {' then '.join(versions) or 'version unknown'}", style="dim", markup=False, highlight=False)
    return "".join(pieces)


@app.command()
def demo(
    deployment: Annotated[Path, typer.Option(help="The graph to start.")] = Path("deployments/laptop.yaml"),
    output: Annotated[Path, typer.Option(help="Where results go.")] = Path("demo-output"),
    users: Annotated[int, typer.Option(min=1, help="Simulated users who talk at once.")] = 8,
    sessions: Annotated[int, typer.Option(min=1, help="Conversations in all.")] = 160,
    target_version: Annotated[int | None, typer.Option(min=1, help="Stop early when the policy is this new.")] = None,
    time_limit: Annotated[float, typer.Option(min=1.0, help="Seconds of talking at most.")] = 480.0,
    questions: Annotated[int, typer.Option(min=1, help="Questions in one session.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the users' words.")] = 0,
) -> None:
    """Start the graph, let simulated users talk to it, and say whether it learned what they want."""
    from clawrl.evaluation.demo import DemoOptions, run_demo

    options = DemoOptions(
        deployment=deployment,
        output=output,
        users=users,
        sessions=sessions,
        target_version=target_version,
        time_limit_s=time_limit,
        questions_per_session=questions,
        seed=seed,
    )
    raise typer.Exit(run_demo(options, console))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
