"""What `clawrl check` says of autoscaling: who could starve the trainer, whose answers could be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from clawrl.check import check_file
from tests.live import REPOSITORY

AUTOSCALED = REPOSITORY / "deployments" / "cluster" / "autoscaled.yaml"
BOTH = "replicas of Rollout may take the CPUs that the trainer needs"


@pytest.fixture
def notes(tmp_path: Path) -> Any:
    """The notes on the autoscaled file, with other ``args`` (dotted) and with other words about Rollout."""

    def check(args: dict[str, Any] | None = None, drop: str = "", **rollout: Any) -> list[str]:
        document = yaml.safe_load(AUTOSCALED.read_text())
        (application,) = document["applications"]
        for path, value in (args or {}).items():
            *parents, leaf = path.split(".")
            block = application["args"]
            for name in parents:
                block = block[name]
            block[leaf] = value
        (override,) = application["deployments"]
        override.update(rollout)
        override.pop(drop, None)
        file = tmp_path / "file.yaml"
        file.write_text(yaml.safe_dump(document))
        report = check_file(file)
        assert report.problems == ()
        return [note for note in report.notes if "deployments[" in note]

    return check


def test_the_file_that_shows_how_has_nothing_to_be_said_about_it(notes: Any) -> None:
    assert notes() == []


@pytest.mark.parametrize(
    "args",
    [
        {"policy.resources": {"num_cpus": 1}},
        {"trainer.resources": {"num_cpus": 1}},
        {"trainer.resources": {"num_cpus": 1, "custom": {"serving": 1}}},
        # A name of the trainer's alone keeps nobody else away from its node.
        {"policy.resources": {"num_cpus": 1}, "trainer.resources": {"num_cpus": 1, "custom": {"training": 1}}},
    ],
)
def test_replicas_that_may_take_the_trainers_place_are_named(notes: Any, args: dict[str, Any]) -> None:
    (note,) = notes(args)
    assert BOTH in note and note.startswith("applications[0].deployments[0]: ")
    assert "policy.resources.custom" in note


def test_what_takes_nothing_of_the_trainers_or_does_not_grow_is_no_danger(notes: Any) -> None:
    assert notes({"policy.resources": {"num_cpus": 0}}) == []
    fixed = {"min_replicas": 2, "max_replicas": 2}
    assert notes({"policy.resources": {"num_cpus": 1}}, autoscaling_config=fixed) == []


def test_serves_own_options_go_before_the_arguments(notes: Any) -> None:
    (note,) = notes(ray_actor_options={"num_cpus": 1})
    assert BOTH in note
    assert notes({"policy.resources": {"num_cpus": 1}}, ray_actor_options={"resources": {"serving": 1}}) == []


def test_gpus_are_shared_as_well(notes: Any) -> None:
    gpu = {"num_gpus": 1, "gpu_memory_gib": 80}
    (note,) = notes({"policy.resources": gpu, "trainer.resources": gpu, "policy.engine.device": "cuda"})
    assert "may take the GPUs that" in note


def test_answers_that_would_be_cut_and_targets_that_let_requests_wait_are_named(notes: Any) -> None:
    (note,) = notes(drop="graceful_shutdown_timeout_s")
    assert "has 20 s to end its answers" in note
    (note,) = notes(autoscaling_config={"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 9})
    assert "9 a replica, but policy.engine.max_running_requests is 8" in note
