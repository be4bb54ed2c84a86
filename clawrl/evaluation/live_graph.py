"""One run of the real graph: check the file, start a server with a state folder of its own, let users talk, stop it.

Shared by the demo and the learning bench. Whatever prevents a run is a `RunProblem` whose text is for the person who
started it. Our own HTTP routes count like any other request: a failure of theirs goes on the record, and the run goes
on. The state folder is new each time; one that was not made here is never removed.
"""

import asyncio
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clawrl.client import ApiClient, ApiProblem
from clawrl.evaluation.demo_server import DemoServer, port_is_free
from clawrl.evaluation.demo_users import UserPool
from clawrl.evaluation.observations import Observations
from clawrl.serving.auth import resolve_key

POLL_S = 1.0
SETTLE_S = 15.0
_READY_TIMEOUT_S = 900.0
_TOO_MANY_FAILURES = 20
# The most that `GET /clawrl/turns` gives at once.
_MOST_TURNS = 10_000
# Marks a folder as ours before it is ever removed.
_HOME_MARK = ".made-by-clawrl-demo"


class RunProblem(Exception):
    """The run cannot go on; the text is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    api_key: str | None


def preflight(deployment: Path) -> Address:
    """The server's address and key, or one clear reason not to start."""
    from clawrl.check import check_file

    if importlib.util.find_spec("matplotlib") is None:
        raise RunProblem("matplotlib is missing; install the demo's extra: pip install 'clawrl[demo]'")
    if problems := check_file(deployment).problems:
        raise RunProblem(f"{deployment} is not valid: {problems[0]}")
    document: Mapping[str, Any] = yaml.safe_load(deployment.read_text())
    http: Mapping[str, Any] = document.get("http_options") or {}
    host, port = http["host"], int(http.get("port", 8000))
    if not port_is_free(host, port):
        raise RunProblem(f"port {port} of {host} is taken; stop what listens there, or change http_options.port")
    reachable = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return Address(f"http://{reachable}:{port}", _api_key(document))


def fresh_home(home: Path) -> None:
    if home.exists():
        if not (home / _HOME_MARK).exists():
            raise RunProblem(f"{home} exists and was not made by clawrl; move it away or choose another --output")
        shutil.rmtree(home)
    home.mkdir(parents=True)
    (home / _HOME_MARK).touch()


@contextmanager
def running_graph(
    deployment: Path, address: Address, home: Path, log: Path, seen: Observations, say: Callable[[str], None]
) -> Iterator[DemoServer]:
    """A server that is ready; on the way out it is stopped however the block ended, and what stayed is on record."""
    began = time.monotonic()
    server = DemoServer(deployment, home, log)
    try:
        server.start()
        _wait_ready(server, address, say)
        seen.seconds["until_ready"] = round(time.monotonic() - began, 1)
        yield server
    finally:
        say("stopping the server")
        seen.left_behind = server.stop()


async def talk(
    pool: UserPool,
    api: ApiClient,
    server: DemoServer,
    seen: Observations,
    *,
    time_limit_s: float,
    stop: Callable[[Observations], str | None],
    show: Callable[[float], None],
) -> None:
    """Let the users talk until their sessions are over, the time is up or ``stop`` names a reason; `ended` says which.

    ``show`` is called with the seconds so far, after each look at the status.
    """
    began = time.monotonic()
    talking = asyncio.create_task(pool.run())
    while not talking.done():
        await read_status(api, seen)
        await asyncio.to_thread(server.remember)
        elapsed = time.monotonic() - began
        show(elapsed)
        reason = stop(seen)
        if not server.alive:
            reason = "the server ended"
        elif len(seen.record.failures) >= _TOO_MANY_FAILURES:
            reason = "too many failed requests"
        elif elapsed > time_limit_s:
            reason = reason or "time limit"
        if reason:
            seen.ended = seen.ended or reason
            pool.stop()
        await asyncio.wait([talking], timeout=POLL_S)
    await talking
    seen.ended = seen.ended or "all sessions"
    seen.seconds["talking"] = round(time.monotonic() - began, 1)


async def read_status(api: ApiClient, seen: Observations) -> None:
    status = await attempt(seen, api.status)
    if status is not None:
        seen.status = status
        # The status may list only the newest versions; what was seen once stays seen.
        seen.versions.update((row["version"], row) for row in status.get("versions") or [] if row["version"] > 0)


async def settle(api: ApiClient, seen: Observations) -> None:
    """Read the final figures; the last acks may be a moment behind the last answers."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        await read_status(api, seen)
        turns = seen.status.get("turns") or {}
        done = turns.get("recorded") == len(seen.record.answers) and turns.get("adds_up")
        if done or time.monotonic() > deadline:
            break
        await asyncio.sleep(POLL_S)
    seen.turns = await attempt(seen, api.turns, min(max(1, len(seen.record.answers)), _MOST_TURNS)) or ()


async def attempt(seen: Observations, call: Any, *arguments: Any) -> Any:
    """The call's answer; None when it failed, and then the failure is on record."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except ApiProblem as problem:
        seen.record.failures.append(str(problem))
        return None


def _api_key(document: Mapping[str, Any]) -> str | None:
    for application in document["applications"]:
        serving = (application.get("args") or {}).get("serving") or {}
        if serving.get("api_key"):
            try:
                return resolve_key(serving["api_key"], os.environ)
            except ValueError as error:
                raise RunProblem(str(error)) from error
    return None


def _wait_ready(server: DemoServer, address: Address, say: Callable[[str], None]) -> None:
    say(f"starting the graph at {address.url}; the first start also fetches the model")
    said: tuple[str, ...] | None = None
    with ApiClient(address.url, address.api_key) as client:
        for reading in client.wait_ready(_READY_TIMEOUT_S, POLL_S):
            server.remember()
            if reading.ready:
                return
            if not server.alive:
                raise RunProblem(f"the server ended before it was ready; its last words:\n{server.log_tail()}")
            if reading.missing != said:
                said = reading.missing
                say(f"waiting for {', '.join(said)}")
    waited_for = ", ".join(said or ("the server",))
    raise RunProblem(f"not ready after {_READY_TIMEOUT_S:g} s ({waited_for}); the log ends:\n{server.log_tail()}")
