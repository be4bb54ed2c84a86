"""The graph on a cluster of its own: a head and worker nodes on this machine, and `serve run` on top.

Each node has a seat for one trainer rank and takes one policy replica at most, so that losing a node costs both a rank
and a replica. What must not be lost with a node is on the head: the coordinator's disk, and the way in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from ray.cluster_utils import Cluster
from ray.util import get_node_ip_address

from tests.chaos.reaper import end_family, start_reaper
from tests.family import command_line, family
from tests.live import Live, free_port, tiny_deployment

log = logging.getLogger(__name__)
T = TypeVar("T")
REPLICAS = 2
RANKS = 2
BATCH_SIZE = 8
COLLECTIVE_TIMEOUT_S, START_TIMEOUT_S = 32.0, 90.0
PUBLISH = {
    "bucket_mb": 0.02,
    # No replica of these reads files.
    "fetch_timeout_s": 1,
    "prepare_timeout_s": 4,
    "transfer_timeout_s": 5,
    "commit_timeout_s": 4,
    "go_back_timeout_s": 4,
}
LONGEST_PUBLISH_S = 5 + 4 + 4
_ON_HEAD = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
_NODE: dict[str, Any] = {"num_cpus": 4, "resources": {"rank": 1}, "object_store_memory": 80 * 2**20}
_STOP_S = 120.0
_STARTS = 3


def chaos_deployment(model: Path) -> dict[str, Any]:
    file = tiny_deployment(
        model,
        free_port(),
        replicas=REPLICAS,
        trainer__method={"name": "combine", "baseline": "none"},
        judge__hints={"source": "quoting", "reuse": "session"},
        trainer__training__fsdp_size=RANKS,
        trainer__training__batch_size=BATCH_SIZE,
        trainer__training__collective_timeout_s=COLLECTIVE_TIMEOUT_S,
        trainer__training__start_timeout_s=START_TIMEOUT_S,
        trainer__resources={"num_cpus": 0.1, "custom": {"rank": 1}},
        publish=PUBLISH,
        # Random weights say anything, and again.
        guards={"alarms": {"enabled": False}, "filters": {"duplicates": "keep", "min_zlib_ratio": 0.0}},
    )
    file["applications"][0]["deployments"] = [
        {"name": "Rollout", "num_replicas": REPLICAS, "max_replicas_per_node": 1},
        {"name": "Ingress", "ray_actor_options": _ON_HEAD},
    ]
    return file


class Rig(Live):
    """Use as a context manager. Leaving it ends every process of it; ``left`` says which ones had to be killed."""

    def __init__(self, model: Path) -> None:
        gcs_port = free_port()
        # Ray takes a loopback address for another one when it connects.
        address = f"{get_node_ip_address()}:{gcs_port}"
        super().__init__(chaos_deployment(model), env={"RAY_ADDRESS": address})
        self._reaper = start_reaper(self.folder)
        self._gcs_port = gcs_port
        self._cluster: Cluster | None = None
        self.left: list[str] = []

    def start(self, timeout_s: float = 240.0) -> None:
        # Nodes and their workers inherit this program's environment.
        os.environ.update(self.env)
        self._cluster = _patiently(self._head, otherwise=lambda: end_family(self.folder))
        self.add_node()
        super().start(timeout_s)

    def _head(self) -> Cluster:
        return Cluster(
            initialize_head=True,
            head_node_args={
                **_NODE,
                "gcs_server_port": self._gcs_port,
                # Ray Train asks it whether a controller is alive before it gives up the seats of the ranks.
                "include_dashboard": True,
                "dashboard_port": free_port(),
            },
        )

    def add_node(self) -> None:
        cluster = self._cluster
        assert cluster is not None
        _patiently(lambda: cluster.add_node(**_NODE))

    def worker_pids(self) -> list[int]:
        """Everything that dies with the worker node: its raylet and what that started."""
        raylet = psutil.Process(self._worker().all_processes["raylet"][0].process.pid)
        return [raylet.pid, *(child.pid for child in raylet.children(recursive=True))]

    def lose_node(self) -> None:
        """The whole worker node at once, as when its power fails."""
        assert self._cluster is not None
        for pid in self.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(self._worker(), allow_graceful=False)

    def _worker(self) -> Any:
        assert self._cluster is not None
        return next(iter(self._cluster.worker_nodes))

    def stop(self, timeout_s: float = _STOP_S) -> list[psutil.Process]:
        """Ctrl-C for `serve run`, then the nodes. Training checkpoints on the way."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.left.append(f"serve run was not done in {timeout_s:g} s")
                self.process.kill()
                self.process.wait()
            self.process = None
        if self._cluster is not None:
            self.left += [_named(process) for process in self._actors()]
            self._cluster.shutdown()
            self._cluster = None
        return self._remaining(15.0)

    def keep(self, folder: Path) -> None:
        """Copies what helps to understand a run: the ledger, its keys and the logs of every process."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in [self.log] if self.log.exists() else []:
            shutil.copy(file, folder)
        for file in (self.home / "tiny").glob("ledger.sqlite*"):
            shutil.copy(file, folder)
        if (keys := self.home / "tiny.keys").exists():
            shutil.copytree(keys, folder / "keys", dirs_exist_ok=True)
        for logs in self.folder.glob("ray/session_2*/logs"):
            shutil.copytree(logs, folder / "logs", dirs_exist_ok=True)

    def remove(self) -> None:
        """The reaper ends what is left, and removes the folder."""
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait()

    def _actors(self) -> list[psutil.Process]:
        """Actors of ours that a stopped deployment should not have any more."""
        ours = ("ray::RayTrainWorker", "ray::TrainerDriver", "ray::CoordinatorActor", "ray::ServeReplica")
        deadline = time.monotonic() + 10.0
        while True:
            found = [p for p in family(self.folder) if any(title in _named(p) for title in ours)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.3)

    def _remaining(self, within_s: float) -> list[psutil.Process]:
        _, left = psutil.wait_procs(family(self.folder), timeout=within_s)
        return list(left)


def _patiently(start: Callable[[], T], *, otherwise: Callable[[], object] = lambda: None) -> T:
    """Ray gives a node 30 s to start, which a busy machine may need longer for."""
    for _ in range(_STARTS - 1):
        try:
            return start()
        except Exception as error:
            log.warning("a node did not start and is started again: %s", error)
            otherwise()
    return start()


def _named(process: psutil.Process) -> str:
    return f"{process.pid} {' '.join(command_line(process))[:100]}"
