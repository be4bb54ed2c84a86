"""The demo's server: `serve run FILE` as a child in its own process group, with a state folder of its own.

Owns the child from start to the last of its descendants: the log, memory by role, SIGINT, and the proof
that nothing stayed behind. Every descendant ever seen is remembered with its start time, because a
process whose parent died no longer shows who started it.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

# How long descendants may take to follow their parent.
_STRAGGLERS_S = 15.0
_RAY_TITLE = re.compile(r"ray::(?P<title>\S+)")
_SYSTEM_ROLES = ("raylet", "gcs_server", "dashboard_agent", "runtime_env_agent", "dashboard", "log_monitor", "monitor")


def hear_ctrl_c() -> None:
    """A shell starts what a script runs in the background with SIGINT ignored, and children inherit that: then nothing
    stops `serve run` but a kill. Call it in the main thread, before the child is started.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class DemoServer:
    """``home`` becomes the server's CLAWRL_HOME, ``log`` takes both of its outputs."""

    def __init__(self, deployment: Path, home: Path, log: Path) -> None:
        self._deployment = deployment
        self._home = home
        self._log = log
        self._log_file: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._seen: dict[int, psutil.Process] = {}

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """``extra`` is added to the child's environment."""
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment |= {
            "CLAWRL_HOME": str(self._home.resolve()),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
            **(extra or {}),
        }
        hear_ctrl_c()
        self._log_file = self._log.open("wb")
        # "local": never join a cluster that somebody else runs on this machine.
        self._child = subprocess.Popen(
            [*_serve_command(), "run", "--address", "local", str(self._deployment)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def remember(self) -> list[psutil.Process]:
        """The child and its descendants now; call now and then, so that `stop` knows them all."""
        if self._child is None:
            return []
        try:
            root = psutil.Process(self._child.pid)
            now = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._seen.update((process.pid, process) for process in now)
        return now

    def memory_mb(self) -> dict[str, dict[str, float]]:
        """Resident memory by role. Pages that processes share count in each of them."""
        roles: dict[str, list[float]] = defaultdict(list)
        for process in self.remember():
            try:
                roles[role_of(process.cmdline())].append(process.memory_info().rss / 2**20)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return {
            role: {"processes": len(sizes), "rss_mb": round(sum(sizes), 1)} for role, sizes in sorted(roles.items())
        }

    def stop(self, timeout_s: float = 90.0) -> list[str]:
        """SIGINT, wait, and name what is still there afterwards. What is, is killed; an empty list is success."""
        if self._child is None:
            return []
        self.remember()
        if self.alive:
            self._child.send_signal(signal.SIGINT)
        left: list[str] = []
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            left.append(f"serve run did not end within {timeout_s:g} s of SIGINT")
        deadline = time.monotonic() + _STRAGGLERS_S
        while (stragglers := self._stragglers()) and time.monotonic() < deadline:
            time.sleep(0.25)
        for process in stragglers:
            left.append(_describe(process))
            _kill(process)
        self._child.wait(10.0)
        if self._log_file is not None:
            self._log_file.close()
        return left

    def _stragglers(self) -> list[psutil.Process]:
        # is_running compares start times, so a process id that was reused is not taken for ours.
        return [p for p in self._seen.values() if p.is_running() and not _is_zombie(p)]


def port_is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def role_of(cmdline: list[str]) -> str:
    """A short name for a process of the tree: the actor's name, or the part of Ray that it is."""
    line = " ".join(cmdline)
    if match := _RAY_TITLE.search(line):
        # Titles look like ray::ServeReplica:app:Rollout.handle_request or ray::Coordinator.lease().
        return match["title"].split(":")[-1].split(".")[0] or "ray worker"
    if line.startswith("ray-dashboard"):
        return "dashboard"
    program = Path(cmdline[0]).name if cmdline else "unknown"
    if program.startswith("python") and "run" in cmdline and "serve" in line:
        return "serve run"
    for role in _SYSTEM_ROLES:
        if any(Path(part).stem in (role, f"{role}_main") for part in cmdline) or f"{role}/" in line:
            return role
    return next((Path(part).stem for part in cmdline[1:] if part.endswith(".py")), program)


def _serve_command() -> list[str]:
    """The `serve` of this very environment, else the one that a shell would find."""
    beside = Path(sys.executable).parent / "serve"
    return [str(beside) if beside.exists() else shutil.which("serve") or "serve"]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _describe(process: psutil.Process) -> str:
    try:
        return f"{role_of(process.cmdline())} (process {process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(5.0)
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        return
