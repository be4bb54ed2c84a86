"""A live deployment for tests: `serve run` as a user starts it, with a tiny model, on ports of its own."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import yaml

from clawrl.evaluation.demo_server import hear_ctrl_c
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.store import Ledger
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.opening import open_ledger
from tests.family import command_line, family
from tests.tiny_judge import labels_for

REPOSITORY = Path(__file__).resolve().parent.parent
MODEL = "tiny"
KEY = "a key for the tests"
AUTH = {"Authorization": f"Bearer {KEY}"}
# They say anything: only answers of two tokens are to set the alarm off. (Those that a client cut to one would be short
# by its doing.)
GUARDS_FOR_RANDOM_WEIGHTS = {
    "alarms": {
        "window": 24,
        "min_turns": 12,
        "short_tokens": 1,
        "max_share_short": 0.9,
        "min_mean_tokens": 3,
        "max_repetitive_share": 1.0,
        "max_kl": 1e6,
        "max_fluency_drop": 1e6,
        "min_lift_share": 0.0,
    },
    "filters": {"duplicates": "keep", "min_zlib_ratio": 0.0},
}


def free_port() -> int:
    """One that nobody listens on, and that nobody gets who asks for any: it is used much later, by another process.

    The kernel gives those above, and Ray its workers those below.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")


def tiny_deployment(model: Path, port: int, *, replicas: int = 1, **overrides: Any) -> dict[str, Any]:
    """A whole deployment file. ``overrides`` are dotted paths below ``args`` (with ``__`` for the dots).

    Without a ``judge__verdict`` of the test's own the model itself is the judge, as well as it can.
    """
    verdict = overrides.pop("judge__verdict", None) or {"backoff_s": 0.2, "labels": list(labels_for(model))}
    engine = {
        "dtype": "float32",
        "context_length": 512,
        "max_running_requests": 4,
        "kv_blocks": 32,
        "page_size": 64,
        "threads": 1,
    }
    args: dict[str, Any] = {
        "name": "tiny",
        "serving": {
            "served_name": MODEL,
            "api_key": "env:CLAWRL_TEST_KEY",
            "sampling": {"temperature": 1.0, "max_tokens": 24},
        },
        "policy": {"model": {"source": str(model)}, "engine": engine, "resources": {"num_cpus": 0.1}},
        "judge": {
            "engine": {**engine, "context_length": 1024},
            "verdict": verdict,
            "resources": {"num_cpus": 0.1},
        },
        "trainer": {
            "method": {"name": "binary_rl", "baseline": "none"},
            "training": {
                "dtype": "float32",
                "batch_size": 4,
                "micro_batch_tokens": 1024,
                "max_sample_tokens": 512,
                "learning_rate": 1e-3,
                "checkpoint_every": 2,
                "threads": 1,
                "poll_s": 0.5,
                "staleness": {"max_steps": 1000},
            },
            "resources": {"num_cpus": 0.1},
        },
        "publish": {"bucket_mb": 0.05, "prepare_timeout_s": 10, "transfer_timeout_s": 15},
        "ledger": {"idle_timeout_s": 600, "sweep_s": 0.5},
    }
    for path, value in overrides.items():
        *parents, leaf = path.split("__")
        block = args
        for name in parents:
            block = block.setdefault(name, {})
        block[leaf] = value
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port, "request_timeout_s": 120},
        "logging_config": {"enable_access_log": False},
        "applications": [
            {
                "name": "clawrl",
                "route_prefix": "/",
                "import_path": "clawrl.graph:app",
                "args": args,
                "deployments": [{"name": "Rollout", "num_replicas": replicas}],
            }
        ],
    }


class Live:
    """A running deployment. Use as a context manager; leaving it sends SIGINT and waits.

    ``checkout`` is another clone, with an environment of its own in .venv, that is to run it.
    """

    def __init__(
        self,
        file: Mapping[str, Any],
        *,
        home: Path | None = None,
        env: Mapping[str, str] | None = None,
        checkout: Path | None = None,
    ) -> None:
        self._serve = (checkout / ".venv" / "bin" if checkout else Path(sys.executable).parent) / "serve"
        self._checkout = checkout or REPOSITORY
        # Short, since Ray's unix sockets live below it and their paths are limited.
        self.folder = Path(tempfile.mkdtemp(prefix="cl", dir="/tmp"))
        self.home = home or self.folder / "home"
        self.port = file["http_options"]["port"]
        self.model = Path(file["applications"][0]["args"]["policy"]["model"]["source"])
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.folder / "serve.log"
        self._file = self.folder / "deployment.yaml"
        self._file.write_text(yaml.safe_dump(dict(file)))
        self.env = {
            **os.environ,
            "CLAWRL_HOME": str(self.home),
            "RAY_ADDRESS": "local",
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            # Ten seconds by default.
            "RAY_metrics_report_interval_ms": "2000",
            "RAY_SERVE_LOG_TO_STDERR": "1",
            "HF_HUB_OFFLINE": "1",
            "CLAWRL_TEST_KEY": KEY,
            # Code of the tests' own, such as a reward, is found by the actors too.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self._checkout), os.environ.get("PYTHONPATH")])),
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Live:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, timeout_s: float = 240.0) -> None:
        hear_ctrl_c()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(self._serve), "run", str(self._file)],
                cwd=self._checkout,
                env=self.env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self.ready():
                return
            time.sleep(0.3)
        tail = self.log.read_text(errors="replace")[-6000:]
        self.stop()
        raise AssertionError(f"the deployment did not become ready:\n{tail}")

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=120.0)

    def ledger(self) -> Ledger:
        """The ledger's file, read beside the coordinator that writes it."""
        return open_ledger(self.home / "tiny", LedgerConfig(), PrivacyConfig())

    def pids(self, title: str) -> list[int]:
        """Processes of one role, by the title that Ray gives them."""
        return [p.pid for p in self.processes() if any(title in part for part in command_line(p))]

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=20.0).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, timeout_s: float = 90.0) -> list[psutil.Process]:
        """Ctrl-C. Returns processes that were left behind, or did not stop by it (and ends them)."""
        if self.process is None:
            return []
        family = [p for p in self.processes() if p.pid != self.process.pid]
        late: list[psutil.Process] = []
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = [psutil.Process(self.process.pid)]
            self.process.kill()
            self.process.wait()
        left = late + psutil.wait_procs(family, timeout=15.0)[1]
        for process in left:
            process.kill()
        self.process = None
        return left

    def complaints(self) -> str:
        """What the log says of errors, newest last."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if "Error" in line or "ERROR" in line)[-6000:]

    def processes(self) -> list[psutil.Process]:
        """Every process of this deployment, found by its private Ray folder."""
        return family(self.folder)

    def status(self) -> dict[str, Any]:
        reply = httpx.get(f"{self.url}/clawrl/status", headers=AUTH, timeout=20.0)
        reply.raise_for_status()
        return dict(reply.json())

    def turns(self, limit: int = 10_000) -> list[dict[str, Any]]:
        reply = httpx.get(f"{self.url}/clawrl/turns", params={"limit": limit}, headers=AUTH, timeout=20.0)
        reply.raise_for_status()
        return list(reply.json())

    def wait_for(self, condition: Any, *, timeout_s: float = 120.0, what: str = "") -> dict[str, Any]:
        """Poll the status until ``condition(status)``; errors on the way are part of the life."""
        deadline = time.monotonic() + timeout_s
        status: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                status = self.status()
                if condition(status):
                    return status
            except (httpx.HTTPError, ValueError, KeyError):
                pass
            time.sleep(0.2)
        tail = self.log.read_text(errors="replace")[-4000:]
        raise AssertionError(f"not reached in {timeout_s} s: {what}; last status {status}\n{tail}")
