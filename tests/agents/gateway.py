"""OpenClaw as it runs for most people: a daemon, the gateway, which keeps the sessions and starts their runs.

`Gateway` talks to it over the gateway's own HTTP endpoints, so that nothing has to be started for each thing said.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import httpx

from tests.agents import AgentFailed, openclaw
from tests.clients.heard import Endpoint

_TOKEN = "a token for the gateway"
_HOOK_TOKEN = "a token for its hooks"
_START_S = 300
_STOP_S = 30
_TRIES = 3
_ANSWER_S = 300


class Gateway:
    """A context manager. ``settings`` are laid over its configuration; what it prints is in ``folder/gateway.log``."""

    def __init__(self, at: Endpoint, folder: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._folder, self._log = folder, folder / "gateway.log"
        self._daemon: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        openclaw.configure(at, folder, settings=openclaw.laid_over(_settings(port), settings))
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {_TOKEN}"}, timeout=_ANSWER_S
        )

    def __enter__(self) -> Self:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._start()
                return self
            except BaseException as error:
                self._stop()
                # Its own threads may be too slow for it while the machine is busy.
                if not isinstance(error, AgentFailed) or not tries_left:
                    raise
        raise AssertionError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._stop()

    def say(self, session: str, text: str) -> str:
        """The answer to what a user says in the session with this name."""
        answered = self._http.post("/v1/chat/completions", **self._said(session, text))
        answered.raise_for_status()
        return str(answered.json()["choices"][0]["message"]["content"])

    @contextmanager
    def saying(self, session: str, text: str) -> Iterator[httpx.Response]:
        """The same as it streams. Leaving before its end closes the connection, which stops the run."""
        said = self._said(session, text)
        said["json"]["stream"] = True
        with self._http.stream("POST", "/v1/chat/completions", **said) as answer:
            yield answer

    def wake(self, text: str) -> None:
        """Tells its main session of an event, and has a heartbeat begin at once."""
        told = {"text": text, "mode": "now"}
        self._http.post("/hooks/wake", json=told, headers={"Authorization": f"Bearer {_HOOK_TOKEN}"}).raise_for_status()

    def session_ids(self) -> dict[str, str]:
        """The id of each session by its key."""
        listed = self._http.post("/tools/invoke", json={"tool": "sessions_list", "args": {"limit": 100}})
        listed.raise_for_status()
        return {one["key"]: one["sessionId"] for one in listed.json()["result"]["details"]["sessions"]}

    def _said(self, session: str, text: str) -> dict[str, Any]:
        return {
            "json": {"model": "openclaw", "messages": [{"role": "user", "content": text}]},
            "headers": {"x-openclaw-session-key": f"agent:main:{session}"},
        }

    def _start(self) -> None:
        program = openclaw.program_of(openclaw.VERSION)
        known = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "NO_COLOR": "1", "TERM": "dumb"}
        with self._log.open("wb") as log:
            self._daemon = subprocess.Popen(
                [*program, "gateway", "run", "--bind", "loopback"],
                cwd=self._folder,
                env=known | openclaw.environment(program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                raise AgentFailed(f"the gateway did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.5)

    def _stop(self) -> None:
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon = None

    def _answers(self) -> bool:
        try:
            return self._http.get("/v1/models", timeout=5).is_success
        except httpx.TransportError:
            return False


def _settings(port: int) -> dict[str, Any]:
    return {
        "gateway": {
            "mode": "local",
            "port": port,
            "bind": "loopback",
            "auth": {"mode": "token", "token": _TOKEN},
            "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
        },
        "hooks": {"enabled": True, "token": _HOOK_TOKEN},
        "agents": {"defaults": {"heartbeat": {"every": "12h", "target": "none"}}},
        "tools": {"toolSearch": False},
    }
