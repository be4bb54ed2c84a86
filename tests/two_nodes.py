"""A live deployment on two nodes of one machine: a head with the state folder, and one that only serves.

Where the kernel lets us, the second node gets a mount of its own over the state folder, so that it truly does not see
the head's disk; elsewhere its replicas are told not to look.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.fake_cluster import ray_start
from tests.live import Live, free_port

_NODE = "CLAWRL_TEST_NODE"


def can_hide() -> bool:
    """Whether a process may have a mount of its own here."""
    with tempfile.TemporaryDirectory() as folder:
        probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder]
        try:
            return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


class TwoNodes(Live):
    """`serve run` is on the head; `lose_the_head` ends both as a power cut would, and `start` starts anew."""

    def __init__(self, file: Mapping[str, Any], *, env: Mapping[str, str], hidden: bool) -> None:
        super().__init__(file, env=env)
        self._hidden = hidden
        self._generation = 0

    def start(self, timeout_s: float = 600.0) -> None:
        self._generation += 1
        port = free_port()
        self.env["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        self.home.mkdir(parents=True, exist_ok=True)
        head = ["--head", f"--port={port}", "--num-cpus=2", '--resources={"training": 1}', "--include-dashboard=false"]
        head.append(f"--dashboard-port={free_port()}")
        self._node("head", [*head, f"--ray-client-server-port={free_port()}"])
        self._node("serving", [f"--address=127.0.0.1:{port}", "--num-cpus=1", '--resources={"serving": 1}'])
        super().start(timeout_s)

    def lose_the_head(self) -> None:
        for process in self.processes():
            if _node_of(process) == f"head{self._generation}":
                process.kill()
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self, timeout_s: float = 90.0) -> list[psutil.Process]:
        """The nodes are not `serve run`'s to end, so that something is always left."""
        left = super().stop(timeout_s)
        for process in self.processes():
            process.kill()
        return left

    def node_of_replicas(self) -> set[str]:
        pids = [replica["pid"] for replica in self.status()["replicas"]]
        return {_node_of(psutil.Process(pid)).rstrip("0123456789") for pid in pids}

    def copies(self) -> list[Path]:
        """Snapshots that were copied to the second node, as that node sees its disk."""
        pids = [replica["pid"] for replica in self.status()["replicas"]]
        return [copy for pid in pids for copy in Path(f"/proc/{pid}/root{self.home}/tiny/copies").glob("*/v*")]

    def _node(self, name: str, options: list[str]) -> None:
        command = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--node-ip-address=127.0.0.1",
            *options,
            "--object-store-memory=150000000",
            f"--dashboard-agent-listen-port={free_port()}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--disable-usage-stats",
            *([f"--temp-dir={self.folder}"] if name == "head" else []),
        ]
        if name != "head" and self._hidden:
            hide = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hide, str(self.home), *command]
        environment = {key: value for key, value in self.env.items() if key != "RAY_ADDRESS"}
        # `serve run` is a process of the head's, and inherits nothing from here.
        ray_start(self, command, {**environment, _NODE: f"{name}{self._generation}"})


def _node_of(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(_NODE, ""))
    except psutil.Error:
        return ""
