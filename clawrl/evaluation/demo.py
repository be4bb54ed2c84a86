"""The demo: start the graph, ask held-out questions, let users talk, ask again, say whether the loop closed.

In: a deployment file. Out: `learning.png`, `turns.jsonl`, `summary.json` and `server.log` in the output
folder, tables on the console, and an exit code: 0 only if every check passed. The server is a child that
ends with this function however it ends. Its state folder is new each time; it is removed when the run
passed and kept for a look when it did not.
"""

import asyncio
import importlib.util
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from clawrl.client import ApiClient, ApiProblem
from clawrl.evaluation import demo_report as report
from clawrl.evaluation.demo_progress import Display, take_snapshot
from clawrl.evaluation.demo_server import DemoServer, port_is_free
from clawrl.evaluation.demo_users import UserPool, open_client
from clawrl.evaluation.simulated_user import HELD_OUT_QUESTIONS
from clawrl.serving.auth import resolve_key

_POLL_S = 1.0
_READY_TIMEOUT_S = 900.0
_SETTLE_S = 15.0
_TOO_MANY_FAILURES = 20
# The most that `GET /clawrl/turns` gives at once.
_MOST_TURNS = 10_000
# Marks a folder as ours before it is ever removed.
_HOME_MARK = ".made-by-clawrl-demo"


class DemoError(Exception):
    """The demo cannot go on; the text is for the person who started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    deployment: Path
    output: Path
    users: int = 8
    target_version: int = 12
    time_limit_s: float = 1800.0
    questions_per_session: int = 2
    seed: int = 0

    @property
    def required_versions(self) -> int:
        """Who asks for a shorter run is held to what they asked for."""
        return min(report.REQUIRED_VERSIONS, self.target_version)


def run_demo(options: DemoOptions, console: Console) -> int:
    began = time.monotonic()
    seen = report.Observations()
    home = options.output / "home"
    try:
        url, api_key = _preflight(options)
        _fresh_home(home)
        server = DemoServer(options.deployment, home, options.output / "server.log")
        try:
            server.start()
            _wait_ready(server, url, api_key, console)
            seen.seconds["until_ready"] = round(time.monotonic() - began, 1)
            asyncio.run(_observe(options, server, url, api_key, seen, console))
        finally:
            console.print("stopping the server", style="dim")
            seen.left_behind = server.stop()
    except (DemoError, ApiProblem) as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    seen.seconds["total"] = round(time.monotonic() - began, 1)
    passed = _tell(options, seen, console)
    if passed:
        shutil.rmtree(home)
    return 0 if passed else 1


def _preflight(options: DemoOptions) -> tuple[str, str | None]:
    """The server's address and key, or one clear reason not to start."""
    from clawrl.check import check_file

    if importlib.util.find_spec("matplotlib") is None:
        raise DemoError("matplotlib is missing; install the demo's extra: pip install 'clawrl[demo]'")
    if problems := check_file(options.deployment).problems:
        raise DemoError(f"{options.deployment} is not valid: {problems[0]}")
    document: Mapping[str, Any] = yaml.safe_load(options.deployment.read_text())
    http: Mapping[str, Any] = document.get("http_options") or {}
    host, port = http["host"], int(http.get("port", 8000))
    if not port_is_free(host, port):
        raise DemoError(f"port {port} of {host} is taken; stop what listens there, or change http_options.port")
    options.output.mkdir(parents=True, exist_ok=True)
    reachable = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{reachable}:{port}", _api_key(document)


def _api_key(document: Mapping[str, Any]) -> str | None:
    for application in document["applications"]:
        serving = (application.get("args") or {}).get("serving") or {}
        if serving.get("api_key"):
            try:
                return resolve_key(serving["api_key"], os.environ)
            except ValueError as error:
                raise DemoError(str(error)) from error
    return None


def _fresh_home(home: Path) -> None:
    if home.exists():
        if not (home / _HOME_MARK).exists():
            raise DemoError(f"{home} exists and was not made by the demo; move it away or choose another --output")
        shutil.rmtree(home)
    home.mkdir(parents=True)
    (home / _HOME_MARK).touch()


def _wait_ready(server: DemoServer, url: str, api_key: str | None, console: Console) -> None:
    console.print(f"starting the graph at {url}; the first start also fetches the model", style="dim", highlight=False)
    said: tuple[str, ...] | None = None
    with ApiClient(url, api_key) as client:
        for reading in client.wait_ready(_READY_TIMEOUT_S, _POLL_S):
            server.remember()
            if reading.ready:
                return
            if not server.alive:
                raise DemoError(f"the server ended before it was ready; its last words:\n{server.log_tail()}")
            if reading.missing != said:
                said = reading.missing
                console.print(f"waiting for {', '.join(said)}", style="dim", markup=False)
    waited_for = ", ".join(said or ("the server",))
    raise DemoError(f"not ready after {_READY_TIMEOUT_S:g} s ({waited_for}); the log ends:\n{server.log_tail()}")


async def _observe(
    options: DemoOptions, server: DemoServer, url: str, api_key: str | None, seen: report.Observations, console: Console
) -> None:
    """Everything between ready and stop. Fills ``seen``."""
    with ApiClient(url, api_key, timeout_s=30.0) as api:
        async with open_client(url, api_key) as client:
            pool = UserPool(
                client,
                api.model_name(),
                seen.record,
                users=options.users,
                questions=options.questions_per_session,
                seed=options.seed,
            )
            console.print(f"asking {len(HELD_OUT_QUESTIONS)} held-out questions", style="dim")
            seen.before = await pool.ask_held_out(HELD_OUT_QUESTIONS, "before")
            await _talk(options, server, api, pool, seen, console)
            # Nothing more is to be learned while the last version shows what it can do.
            await _try(seen, api.pause, "the demo asks its held-out questions")
            console.print("asking the held-out questions again", style="dim")
            seen.after = await pool.ask_held_out(HELD_OUT_QUESTIONS, "after")
        seen.memory_mb = server.memory_mb()
        await _settle(api, seen)


async def _talk(
    options: DemoOptions,
    server: DemoServer,
    api: ApiClient,
    pool: UserPool,
    seen: report.Observations,
    console: Console,
) -> None:
    began = time.monotonic()
    talking = asyncio.create_task(pool.run())
    with Display(console) as display:
        while not talking.done():
            await _read_status(api, seen)
            await asyncio.to_thread(server.remember)
            elapsed = time.monotonic() - began
            display.show(take_snapshot(seen.record, seen.status, elapsed, options.target_version))
            reached = int(seen.status.get("version") or 0) >= options.target_version
            broken = not server.alive or len(seen.record.failures) >= _TOO_MANY_FAILURES
            if reached or broken or elapsed > options.time_limit_s:
                pool.stop()
            await asyncio.wait([talking], timeout=_POLL_S)
    await talking
    seen.seconds["talking"] = round(time.monotonic() - began, 1)


async def _read_status(api: ApiClient, seen: report.Observations) -> None:
    status = await _try(seen, api.status)
    if status is not None:
        seen.status = status
        # The status may list only the newest versions; what was seen once stays seen.
        seen.versions.update((row["version"], row) for row in status.get("versions") or [] if row["version"] > 0)


async def _settle(api: ApiClient, seen: report.Observations) -> None:
    """Read the final figures; the last acks may be a moment behind the last answers."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        await _read_status(api, seen)
        turns = seen.status.get("turns") or {}
        done = turns.get("recorded") == len(seen.record.answers) and turns.get("adds_up")
        if done or time.monotonic() > deadline:
            break
        await asyncio.sleep(_POLL_S)
    seen.turns = await _try(seen, api.turns, min(max(1, len(seen.record.answers)), _MOST_TURNS)) or ()


async def _try(seen: report.Observations, call: Any, *arguments: Any) -> Any:
    """Our own routes count like any other request: a failure is on the record, and the demo goes on."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except ApiProblem as problem:
        seen.record.failures.append(str(problem))
        return None


def _tell(options: DemoOptions, seen: report.Observations, console: Console) -> bool:
    from clawrl.evaluation.demo_plot import write_plot

    verdicts = report.checks(seen, options.required_versions)
    report.write_files(seen, verdicts, options.output)
    write_plot(report.version_rows(seen.record.answers, seen.versions), options.output / "learning.png")
    console.print(report.held_out_table(seen.before, seen.after))
    console.print(report.figures_table(seen))
    agreement = report.judge_agreement(seen.record.answers, seen.turns)
    share = agreement["share"]
    said = f"{share:.0%} of {agreement['compared']} verdicts" if share is not None else "no verdict to compare"
    console.print(f"judge and user's rule agree on {said}", highlight=False)
    console.print(report.checks_table(verdicts))
    console.print(f"written to {options.output}: learning.png, turns.jsonl, summary.json, server.log", markup=False)
    passed = all(check.passed for check in verdicts)
    console.print(
        "the loop closed" if passed else "the loop did NOT close", style="bold green" if passed else "bold red"
    )
    return passed
