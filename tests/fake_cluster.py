"""A live deployment on a cluster that grows and shrinks: Ray's autoscaler over nodes that are processes here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.live import REPOSITORY, Live, free_port

HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
CLUSTER = REPOSITORY / "deployments" / "cluster" / "fake.yaml"
# As docs/operations-cluster.md has them.
ENVIRONMENT = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}


class FakeCluster(Live):
    """The head is started before `serve run`; whatever is left of the cluster ends with it."""

    def __init__(self, file: Mapping[str, Any], *, idle_minutes: float, env: Mapping[str, str]) -> None:
        self._gcs_port = free_port()
        super().__init__(file, env={**env, "RAY_ADDRESS": f"127.0.0.1:{self._gcs_port}"})
        cluster = yaml.safe_load(CLUSTER.read_text())
        cluster["provider"]["gcs_address"] = f"127.0.0.1:{self._gcs_port}"
        cluster["idle_timeout_minutes"] = idle_minutes
        self._cluster_file = self.folder / "cluster.yaml"
        self._cluster_file.write_text(yaml.safe_dump(cluster))

    def start(self, timeout_s: float = 600.0) -> None:
        # Nothing of it may take a port of another Ray on this machine.
        command = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--head",
            f"--autoscaling-config={self._cluster_file}",
            "--node-ip-address=127.0.0.1",
            f"--port={self._gcs_port}",
            f"--temp-dir={self.folder}",
            "--num-cpus=2",
            '--resources={"training": 1}',
            "--object-store-memory=150000000",
            "--include-dashboard=false",
            f"--dashboard-port={free_port()}",
            f"--dashboard-agent-listen-port={free_port()}",
            f"--ray-client-server-port={free_port()}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--disable-usage-stats",
        ]
        environment = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        ray_start(self, command, {**environment, **ENVIRONMENT})
        super().start(timeout_s)

    def stop(self, timeout_s: float = 90.0) -> list[psutil.Process]:
        """The nodes are not `serve run`'s to end, so that something is always left."""
        left = super().stop(timeout_s)
        for process in self.processes():
            process.kill()
        return left

    def nodes_with_replicas(self) -> set[str]:
        return {replica["node"] for replica in self.status()["replicas"] if replica["serving"]}


def ray_start(live: Live, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Ray gives a node half a minute to come up, which a busy machine may need more than once."""
    before = {process.pid for process in live.processes()}
    for tries_left in (2, 1, 0):
        with live.log.open("ab") as out:
            done = subprocess.run(command, env=environment, cwd=REPOSITORY, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode == 0:
            return
        for process in live.processes():
            if process.pid not in before or not tries_left:
                process.kill()
    raise AssertionError(f"no node came up:\n{live.log.read_text(errors='replace')[-3000:]}")


def serve_environment() -> dict[str, str]:
    """Serve looks at the load every half second instead of every ten, and a busy machine has time to start."""
    names = ("HANDLE", "REPLICA")
    return {f"RAY_SERVE_{name}_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5" for name in names} | {
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    }
