"""One to three replicas on three nodes and back, under load, while versions are published all the time."""

from __future__ import annotations

import bisect
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.fake_cluster import FakeCluster, serve_environment
from tests.live import GUARDS_FOR_RANDOM_WEIGHTS, REPOSITORY, free_port, tiny_deployment
from tests.span_kit import spans_that_agree
from tests.traffic import Traffic

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]
FILE = REPOSITORY / "deployments" / "cluster" / "autoscaled.yaml"


class Floors:
    """The coordinator's floor as it rises. Of a sample only the moment after it is known to be within."""

    def __init__(self, live: FakeCluster) -> None:
        self._live = live
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.samples: list[tuple[float, int]] = [(0.0, 0)]

    def __enter__(self) -> Floors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def at(self, when: float) -> int:
        return self.samples[bisect.bisect(self.samples, (when, -1)) - 1][1]

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            try:
                floor = self._live.status()["floor"]
            except (httpx.HTTPError, ValueError):
                continue
            self.samples.append((time.time(), floor))


@pytest.fixture
def cluster(tiny_folder: Path) -> Iterator[FakeCluster]:
    """The resources and the scaling of the file in deployments/cluster, quicker, and a tiny model."""
    (application,) = yaml.safe_load(FILE.read_text())["applications"]
    args, (rollout,) = application["args"], application["deployments"]
    file = tiny_deployment(
        tiny_folder,
        free_port(),
        policy__resources=args["policy"]["resources"],
        judge__resources=args["judge"]["resources"],
        trainer__resources=args["trainer"]["resources"],
        publish={**args["publish"], "bucket_mb": 0.05, "prepare_timeout_s": 20, "transfer_timeout_s": 20},
        guards=GUARDS_FOR_RANDOM_WEIGHTS,
    )
    scaling = {"target_ongoing_requests": 2, "upscale_delay_s": 2, "downscale_delay_s": 5, "look_back_period_s": 11}
    rollout["autoscaling_config"] |= scaling
    file["applications"][0]["deployments"] = [rollout]
    with FakeCluster(file, idle_minutes=0.2, env=serve_environment()) as live:
        yield live


def test_replicas_come_and_go_across_nodes_and_nobody_notices(cluster: FakeCluster, record_property) -> None:  # type: ignore[no-untyped-def]
    live, began = cluster, time.monotonic()

    def replicas(count: int, timeout_s: float) -> None:
        live.wait_for(
            lambda s: sum(bool(r["serving"]) for r in s["replicas"]) == count and len(s["replicas"]) == count,
            timeout_s=timeout_s,
            what=f"{count} replicas",
        )
        record_property(f"seconds_until_{count}_replicas", round(time.monotonic() - began))

    def versions(more: int, timeout_s: float) -> None:
        now = live.status()["version"]
        live.wait_for(lambda s: s["version"] >= now + more, timeout_s=timeout_s, what=f"{more} more versions")

    with Floors(live) as floors, Traffic(live, users=1, pause_s=0.3) as few:
        replicas(1, 60)
        versions(1, 120)
        with Traffic(live, users=9) as many:
            replicas(3, 240)
            nodes = live.nodes_with_replicas()
            assert len(nodes) == 3, "one replica a node"
            versions(3, 180)
            # The replicas have taken every CPU that they can get, and the trainer still finds its own.
            trainers = live.pids("RayTrainWorker")
            os.kill(trainers[0], signal.SIGKILL)
            versions(3, 240)
            assert set(live.pids("RayTrainWorker")).isdisjoint(trainers)
        replicas(1, 240)
        versions(2, 120)
        left = live.nodes_with_replicas()
        assert len(left) == 1 and left <= nodes
    assert few.failures == many.failures == []
    assert len(many.answers) > 50 and len(few.answers) > 20
    with live.ledger() as ledger:
        turns = [turn for row in ledger.turns(100_000) if (turn := ledger.turn(row.turn_id)) is not None and turn.spans]
    old = [
        (turn.turn_id, turn.spans[0].version, floors.at(turn.arrival.arrived_at))
        for turn in turns
        if turn.spans[0].version < floors.at(turn.arrival.arrived_at)
    ]
    assert old == [], "no answer is older than the floor at the time when it was asked for"
    assert floors.samples[-1][1] >= 8, "the floor rises with the versions"
    assert [f for _, f in floors.samples] == sorted(f for _, f in floors.samples)
    assert len({turn.replica for turn in turns}) >= 3
    status = live.status()
    assert status["turns"]["adds_up"] and status["unrecorded"] == 0
    record_property("answers", len(many.answers) + len(few.answers))
    record_property("versions", status["version"])
    assert spans_that_agree(live, most=8) >= 1
