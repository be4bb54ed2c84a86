"""A stand-in for the clawrl server, small enough to read: canned answers, a ledger that is a list.

Used in a thread by the tests of the command line, and as a child process (`python fake_server.py run
--address local FILE`, the way `serve` is called) by the tests of the demo.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

SHORT = "Rain is water that falls from the clouds."
LONG = "Rain is many things to many people, and " * 12


@dataclass
class FakeState:
    """What a test may set before, and look at after. The policy gets one version older per ``turns_per_version``.

    Every third answer is long; with ``learns_after`` the answers to so many turns are, and all later ones are short.
    """

    api_key: str | None = None
    ready_after: int = 0
    turns_per_version: int = 4
    chat_status: int = 200
    break_stream: bool = False
    lose_turns: int = 0
    learns_after: int | None = None
    paused: str | None = None
    requests: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def version(self) -> int:
        return len(self.turns) // self.turns_per_version

    def status(self) -> dict[str, Any]:
        recorded = len(self.turns) - self.lose_turns
        rows = [
            {"version": v, "step": v, "published_at": 1.7e9 + v, "stats": {"reward_mean": v / 20 - 0.5, "hold_ms": 1.5}}
            for v in range(1, self.version + 1)
        ]
        return {
            "name": "fake", "version": self.version, "step": self.version,
            "paused": self.paused is not None, "pause_reason": self.paused,
            "turns": {"recorded": recorded, "adds_up": True, "by_state": {"trained": recorded}, "dropped": {"side": 1}},
            "sessions": {"active": 3}, "unrecorded": 0, "versions": rows[:-13:-1],
            "replicas": [{"replica": "abc", "version": self.version, "running": 1, "waiting": 0}],
            "holds_ms": {"p50": 1.0, "p95": 2.0, "count": self.version},
            "judge": {"judged": recorded, "abstained": 0, "mean_seconds": 0.5},
            "trainer": {"state": "running", "last_metrics": {}},
        }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeState

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._seen(None)
        path = self.path.split("?")[0]
        if path == "/readyz":
            self.state.ready_after -= 1
            ready = self.state.ready_after < 0
            self._json(200 if ready else 503, {"ready": ready, "policy": True, "judge": ready, "coordinator": ready})
        elif not self._authorized():
            return
        elif path == "/clawrl/status":
            self._json(200, self.state.status())
        elif path == "/clawrl/turns":
            self._json(200, self.state.turns)
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "fake-model", "object": "model"}]})
        else:
            self._json(404, {"error": {"message": "no such route"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self._seen(body)
        if not self._authorized():
            return
        if self.path == "/clawrl/pause":
            self.state.paused = body["reason"]
            self._json(200, {"paused": True})
        elif self.path == "/clawrl/resume":
            self.state.paused = None
            self._json(200, {"paused": False})
        elif self.path == "/v1/feedback":
            self._json(200, {"turn_id": "t", "outcome": "taken", "state": "judging"})
        elif self.path == "/v1/chat/completions":
            self._chat(body)
        else:
            self._json(404, {"error": {"message": "no such route"}})

    def _chat(self, body: dict[str, Any]) -> None:
        if self.state.chat_status != 200:
            self._json(self.state.chat_status, {"error": {"message": "not today", "type": "x", "code": None}})
            return
        with self.state.lock:
            number, version = len(self.state.turns), self.state.version
            after = self.state.learns_after
            text = SHORT if (number % 3 if after is None else number >= after) else LONG
            verdict = None if self.headers.get("X-Turn-Type") == "side" else (1 if text == SHORT else -1)
            state = "trained" if verdict else "dropped"
            self.state.turns.append({"turn_id": f"t{number}", "state": state, "verdict": verdict, "score": 0.5})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for word in text.split(" "):
            self._chunk(version, number, {"content": word + " "}, None)
            if self.state.break_stream:
                return
        self._chunk(version, number, {}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, version: int, number: int, delta: dict[str, str], finish: str | None) -> None:
        chunk = {
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-model",
            "system_fingerprint": f"v{version}", "clawrl": {"turn_id": f"t{number}", "version": version},
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }  # fmt: skip
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def _authorized(self) -> bool:
        if self.state.api_key is None or self.headers.get("Authorization") == f"Bearer {self.state.api_key}":
            return True
        self._json(401, {"error": {"message": "invalid key", "code": "invalid_api_key"}})
        return False

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _seen(self, body: Any) -> None:
        self.state.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))


def _make(state: FakeState, port: int = 0) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", port), type("BoundHandler", (Handler,), {"state": state}))
    server.daemon_threads = True
    return server


@contextmanager
def fake_server(state: FakeState) -> Iterator[str]:
    server = _make(state)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


def main() -> None:
    document = yaml.safe_load(Path(sys.argv[-1]).read_text())
    server = _make(FakeState(**document.get("fake", {})), document["http_options"]["port"])
    # Like `serve run`: SIGINT is the polite end.
    signal.signal(signal.SIGINT, lambda *_: threading.Thread(target=server.shutdown).start())
    sys.stdout.write(f"up at {time.time()}\n")
    server.serve_forever(0.05)


if __name__ == "__main__":
    main()
