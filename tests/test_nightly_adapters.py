"""A deployment that trains adapters and publishes these alone: under load, to a replica that comes late, and back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clawrl.messages import WeightKind
from clawrl.weights.manifest import byte_size
from clawrl.weights.snapshot import read_manifest
from tests.live import AUTH, GUARDS_FOR_RANDOM_WEIGHTS, Live, free_port, tiny_deployment
from tests.span_kit import spans_that_agree
from tests.traffic import Traffic, ask

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def adapting(tiny_folder: Path) -> Iterator[Live]:
    file = tiny_deployment(
        tiny_folder,
        free_port(),
        replicas=2,
        trainer__training__lora={"rank": 4, "alpha": 8},
        trainer__training__learning_rate=1e-2,
        # None is removed while it is looked at.
        publish__keep_snapshots=1000,
        guards=GUARDS_FOR_RANDOM_WEIGHTS,
    )
    with Live(file) as deployment:
        yield deployment


def snapshots(live: Live) -> dict[int, Path]:
    folder = live.home / "tiny" / "snapshots"
    return {int(path.name[1:7]): path for path in folder.iterdir() if path.name.startswith("v")}


def test_versions_are_adapters_alone_and_no_request_fails(adapting: Live) -> None:
    with Traffic(adapting, users=4) as traffic:
        adapting.wait_for(lambda s: s["version"] >= 8, timeout_s=240, what="eight versions")
    assert traffic.failures == [] and len({answer.version for answer in traffic.answers}) >= 4
    kept = snapshots(adapting)
    manifests = {version: read_manifest(folder) for version, folder in kept.items()}
    start = manifests.pop(0)
    assert start.kind is WeightKind.FULL and len(manifests) >= 3
    for manifest in manifests.values():
        assert manifest.addition is not None and manifest.addition.base_digest == start.digest
        assert sum(map(byte_size, manifest.tensors)) < sum(map(byte_size, start.tensors)) / 5
    assert spans_that_agree(adapting, most=12) >= 3


def test_a_replica_that_comes_late_loads_the_base_and_the_adapters(adapting: Live) -> None:
    replicas = {replica["replica"]: replica["pid"] for replica in adapting.status()["replicas"]}
    os.kill(next(iter(replicas.values())), signal.SIGKILL)
    status = adapting.wait_for(
        lambda s: (
            len([r for r in s["replicas"] if r["version"] == s["version"] and r["replica"] not in replicas]) == 1
            and len([r for r in s["replicas"] if r["version"] == s["version"]]) >= 2
        ),
        timeout_s=120,
        what="a new replica with the current version",
    )
    with Traffic(adapting, users=4) as traffic:
        adapting.wait_for(lambda s: s["version"] >= status["version"] + 3, timeout_s=120, what="three more versions")
    assert traffic.failures == [] and spans_that_agree(adapting, most=8) >= 3


def test_a_rollback_takes_serving_and_training_back_to_earlier_adapters_on_the_same_base(adapting: Live) -> None:
    with Traffic(adapting, users=4):
        adapting.wait_for(
            lambda s: (s["guards"]["good_version"] or 0) > 0 and s["version"] > s["guards"]["good_version"],
            timeout_s=120,
            what="a good version that is not the newest",
        )
    client = adapting.client()
    for number in range(60):
        ask(client, [{"role": "user", "content": f"question {number}"}], stream=False, session=None, max_tokens=2)
        if adapting.status()["paused"]:
            break
    status = adapting.wait_for(
        lambda s: (
            s["versions"][0]["stats"].get("trainer_rewound")
            and all(replica["version"] == s["version"] for replica in s["replicas"])
        ),
        timeout_s=90,
        what="both replicas and the trainer gone back",
    )
    assert status["versions"][0]["stats"]["rolled_back_to"] > 0
    assert httpx.post(f"{adapting.url}/clawrl/resume", headers=AUTH, timeout=20.0).status_code == 200
    with Traffic(adapting, users=4) as traffic:
        adapting.wait_for(lambda s: s["version"] > status["version"], timeout_s=120, what="learning goes on from there")
    assert traffic.failures == [] and adapting.status()["turns"]["adds_up"]
    kept = snapshots(adapting)
    newest, start = read_manifest(kept[max(kept)]), read_manifest(kept[0])
    assert newest.addition is not None and newest.addition.base_digest == start.digest
