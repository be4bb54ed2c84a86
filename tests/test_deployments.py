"""Every file in deployments/ is one that `clawrl check` accepts on a machine without a GPU, the embedded one too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from typer.testing import CliRunner

from clawrl import cli
from clawrl.check import CheckReport, check_file
from clawrl.config import Deployment
from clawrl.graph import app
from tests.live import REPOSITORY

FOLDER = REPOSITORY / "deployments"
KUBERAY = FOLDER / "kuberay" / "rayservice.yaml"
CLUSTERS = sorted(FOLDER / "cluster" / f"{name}.yaml" for name in ("cluster", "fake"))
FILES = sorted(file for file in FOLDER.rglob("*.yaml") if file not in CLUSTERS)
GPUS = {
    "laptop": 0,
    "laptop-sglang": 0,
    "autoscaled": 0,
    "openclaw": 8,
    "openclaw-lora": 4,
    "openclaw-2node": 16,
    "rayservice": 8,
}


@pytest.fixture(autouse=True)
def _an_empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAWRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLAWRL_API_KEY", "k")
    monkeypatch.setenv("CLAWRL_SGLANG_PYTHON", sys.executable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def kubernetes(kind: str) -> dict[str, Any]:
    return next(part for part in yaml.safe_load_all(KUBERAY.read_text()) if part["kind"] == kind)


@pytest.fixture
def serve_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What Ray Serve reads: the file itself, or what a RayService embeds."""
    file: Path = request.param
    if file != KUBERAY:
        return file
    embedded = tmp_path / "embedded.yaml"
    embedded.write_text(kubernetes("RayService")["spec"]["serveConfigV2"])
    return embedded


def gpus(report: CheckReport) -> float:
    return sum(need.most * need.gpus for need in report.needs)


each = pytest.mark.parametrize("serve_file", FILES, ids=lambda file: file.stem, indirect=True)


def test_every_file_is_expected_here() -> None:
    assert {file.stem for file in FILES} <= GPUS.keys() and len(FILES) == 7


@each
def test_a_deployment_passes_the_check_and_says_how_many_gpus_it_takes(
    serve_file: Path, request: pytest.FixtureRequest
) -> None:
    ServeDeploySchema.model_validate(yaml.safe_load(serve_file.read_text()))
    result = CliRunner().invoke(cli.app, ["check", str(serve_file)])
    assert result.exit_code == 0, result.output
    stem = request.node.callspec.id
    assert gpus(check_file(serve_file)) == GPUS[stem]
    assert "memory was not checked" not in result.output, "its models are known by the table"


@each
def test_a_deployment_builds_the_graph_and_every_gpu_has_figures(serve_file: Path) -> None:
    args = Deployment.model_validate(yaml.safe_load(serve_file.read_text())["applications"][0]["args"])
    assert app(args)._bound_deployment.name == "Ingress"
    seats = {"policy": args.policy, "judge": args.judge, "trainer": args.trainer}
    assert args.sizes().words.keys() == {path for path, part in seats.items() if part.resources.num_gpus}


@pytest.mark.parametrize("name", ["openclaw", "openclaw-2node"])
def test_the_large_ones_learn_with_the_references_figures(name: str) -> None:
    args = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["applications"][0]["args"]
    deployment = Deployment.model_validate(args)
    training, engine = deployment.trainer.training, deployment.policy.engine
    assert deployment.policy.model.source == "Qwen/Qwen3-4B-Thinking-2507"
    assert deployment.judge_model == deployment.policy.model, "the teacher has to share its tokenizer"
    assert (training.batch_size, training.learning_rate, training.betas, training.weight_decay) == (
        16,
        1e-5,
        (0.9, 0.98),
        0.1,
    )
    method = {"k": 4, "eps_clip": 0.2, "eps_clip_high": 0.28, "w_rl": 1.0, "w_opd": 1.0, "baseline": "none"}
    assert method.items() <= args["trainer"]["method"].items()
    assert deployment.serving.sampling.temperature == 0.6 and deployment.serving.sampling.max_tokens == 8192
    assert engine.context_length == 32_768 and engine.sglang.boot_timeout_s >= 600
    assert deployment.judge.verdict.votes == deployment.judge.hints.votes == 3
    assert training.tp_size == 4 and engine.tp_size == deployment.judge.engine.tp_size == 2


def test_the_small_one_trains_adapters_on_every_projection_of_a_layer() -> None:
    args = yaml.safe_load((FOLDER / "openclaw-lora.yaml").read_text())["applications"][0]["args"]
    lora = Deployment.model_validate(args).trainer.training.lora
    assert lora is not None and (lora.rank, lora.alpha) == (16, 32.0)
    assert set(lora.targets) == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}


def test_two_nodes_are_kept_apart_by_what_each_says_it_is_for() -> None:
    """Eight GPUs to train and eight to serve, and no replica fits the other node."""
    report = check_file(FOLDER / "openclaw-2node.yaml")
    needs = {need.actor: need for need in report.needs}
    assert needs["Trainer"].most * needs["Trainer"].gpus == 8
    assert sum(needs[name].most * needs[name].gpus for name in ("Rollout", "Judge")) == 8
    args = yaml.safe_load((FOLDER / "openclaw-2node.yaml").read_text())["applications"][0]["args"]
    deployment = Deployment.model_validate(args)
    assert deployment.trainer.resources.custom.keys() == {"training"}
    assert deployment.policy.resources.custom.keys() == deployment.judge.resources.custom.keys() == {"serving"}


def test_the_rayservice_offers_the_gpus_that_its_deployment_needs() -> None:
    service = kubernetes("RayService")
    assert service["apiVersion"] == "ray.io/v1"
    cluster = service["spec"]["rayClusterConfig"]
    limits = [
        (group["replicas"], container["resources"]["limits"])
        for group in cluster["workerGroupSpecs"]
        for container in group["template"]["spec"]["containers"]
    ]
    report = check_file(FOLDER / "openclaw.yaml")
    assert sum(count * int(limit["nvidia.com/gpu"]) for count, limit in limits) == gpus(report)
    assert sum(count * int(limit["cpu"]) for count, limit in limits) >= sum(
        need.most * need.cpus for need in report.needs
    )
    head = cluster["headGroupSpec"]["rayStartParams"]
    assert (head["num-cpus"], head["num-gpus"]) == ("0", "0"), "what is on the head asks for nothing"
    # Two clusters at once would be two trainers.
    assert service["spec"]["upgradeStrategy"]["type"] == "None"
    assert cluster["authOptions"]["mode"] == "token"


def test_the_rayservice_serves_what_openclaw_serves() -> None:
    embedded = yaml.safe_load(kubernetes("RayService")["spec"]["serveConfigV2"])
    assert embedded["applications"] == yaml.safe_load((FOLDER / "openclaw.yaml").read_text())["applications"]
    assert embedded["proxy_location"] == "EveryNode" and embedded["http_options"]["host"] == "0.0.0.0"


def test_every_pod_has_the_key_and_the_shared_home_on_the_claimed_volume() -> None:
    claim = kubernetes("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    cluster = kubernetes("RayService")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        values = {entry["name"]: entry for entry in container["env"]}
        assert values["CLAWRL_API_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "clawrl"
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        home = values["CLAWRL_HOME"]["value"]
        (volume,) = {name for path, name in mounts.items() if home.startswith(f"{path}/")}
        claimed = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "emptyDir" not in v}
        assert claimed[volume] == claim["metadata"]["name"]
        assert container["image"] == "REGISTRY/clawrl:VERSION"
    assert cluster["rayVersion"] == next(
        line.removeprefix("ray==")
        for line in (REPOSITORY / "constraints.txt").read_text().split()
        if line[:5] == "ray=="
    )


def test_the_guide_to_installing_names_what_the_deployments_expect() -> None:
    guide = (REPOSITORY / "docs" / "install.md").read_text()
    args = Deployment.model_validate(yaml.safe_load((FOLDER / "openclaw.yaml").read_text())["applications"][0]["args"])
    folder = str(Path(args.policy.engine.sglang.python).parent.parent)
    assert f"python3 -m venv {folder}\n" in guide and f"{args.policy.engine.sglang.python}\n" in guide
    assert "REGISTRY/clawrl:VERSION" in guide and "create secret generic clawrl --from-literal=api-key=" in guide
    assert "(docs/install.md)" in (REPOSITORY / "README.md").read_text()
