"""The files in deployments/cluster/: Ray's own word on them, and that their nodes offer what is asked of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from clawrl.check import check_file
from clawrl.config import read_deployment
from tests.fake_cluster import CLUSTER as FAKE
from tests.fake_cluster import ENVIRONMENT
from tests.live import REPOSITORY

FOLDER = REPOSITORY / "deployments" / "cluster"
AUTOSCALED = FOLDER / "autoscaled.yaml"
GUIDE = (REPOSITORY / "docs" / "operations-cluster.md").read_text()


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return document


@pytest.mark.parametrize("name", ["cluster", "fake"])
def test_ray_accepts_the_cluster_file(name: str) -> None:
    # As `ray up` does: what is not said is filled in first.
    validate_config(prepare_config(read(name)))


def test_ray_refuses_a_cluster_file_with_a_key_that_it_does_not_know() -> None:
    wrong = {**read("fake"), "max_wrokers": 3}
    with pytest.raises(Exception, match="max_wrokers"):
        validate_config(prepare_config(wrong))


@pytest.mark.parametrize("name", ["cluster", "fake"])
def test_every_actor_of_the_deployment_finds_its_node(name: str) -> None:
    """Replicas on nodes that serve, as many as there may be; judge and trainer together on the head."""
    cluster, deployment = read(name), read_deployment(AUTOSCALED)
    head = cluster["available_node_types"][cluster["head_node_type"]]["resources"]
    serving = cluster["available_node_types"]["serving"]
    policy, judge, trainer = (part.resources for part in (deployment.policy, deployment.judge, deployment.trainer))
    assert (
        policy.num_cpus <= serving["resources"]["CPU"] and policy.custom["serving"] <= serving["resources"]["serving"]
    )
    assert "training" not in serving["resources"] and "serving" not in head
    assert judge.num_cpus + trainer.num_cpus * deployment.trainer.training.world_size <= head["CPU"]
    assert judge.custom["training"] + trainer.custom["training"] <= head["training"]
    (rollout,) = yaml.safe_load(AUTOSCALED.read_text())["applications"][0]["deployments"]
    assert rollout["autoscaling_config"]["max_replicas"] <= serving["max_workers"] <= cluster["max_workers"]
    needs = {need.actor: need for need in check_file(AUTOSCALED).needs}
    assert (needs["Rollout"].least, needs["Rollout"].most) == (1, 3)


def test_the_head_of_the_cloud_has_its_state_on_a_volume_of_its_own() -> None:
    cluster = read("cluster")
    (start,) = (line for line in cluster["head_start_ray_commands"] if "ray start" in line)
    home = re.search(r"CLAWRL_HOME=(/\w+)/", start)
    assert home is not None
    setup = " ".join(cluster["head_setup_commands"])
    assert (
        "attach-volume" in setup
        and f"mount /dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_volREPLACE {home[1]}" in setup
    )
    assert all("CLAWRL_HOME=" in line for line in cluster["worker_start_ray_commands"] if "ray start" in line)


def test_the_guide_starts_the_made_up_cluster_as_the_nightly_test_does() -> None:
    said = dict(re.findall(r"(\w+)=(\S+)", GUIDE.partition("export RAY_FAKE_CLUSTER")[2].partition("ray start")[0]))
    said = {"RAY_FAKE_CLUSTER": "1"} | {
        k: v.replace("$RAY_CLOUD_INSTANCE_ID", said["RAY_CLOUD_INSTANCE_ID"]) for k, v in said.items()
    }
    assert said == ENVIRONMENT
    assert str(FAKE.relative_to(REPOSITORY)) in GUIDE and str(AUTOSCALED.relative_to(REPOSITORY)) in GUIDE
    fake = read("fake")
    assert fake["provider"]["head_node_id"] == ENVIRONMENT["RAY_CLOUD_INSTANCE_ID"]
    head = fake["available_node_types"]["ray.head.default"]["resources"]
    assert f"--num-cpus {head['CPU']}" in GUIDE and "--resources '{\"training\": 1}'" in GUIDE
    assert "(docs/operations-cluster.md)" in (REPOSITORY / "README.md").read_text()


def test_the_page_says_where_everything_lies() -> None:
    assert Path(FOLDER / "cluster.yaml").read_text().count("docs/operations-cluster.md") == 1
    for word in ("ReadWriteOnce", "gcsFaultToleranceOptions", "CLAWRL_HOME", "snapshot_access"):
        assert word in GUIDE
