"""A state folder with published versions of a tiny model, as a deployment leaves it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM

from clawrl.config import Deployment, read_deployment
from clawrl.ledger import Ledger
from clawrl.messages import AdapterShape, Addition, PolicyVersion, WeightManifest
from clawrl.training.model import full_parameters
from clawrl.weights.adapters import expected_adapters, merge
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import write_snapshot
from tests.live import tiny_deployment
from tests.tiny_model import build_tiny_model


@dataclass(frozen=True, kw_only=True)
class Trained:
    """``file`` describes the deployment; ``weights[n]`` is what version ``n`` was published with."""

    file: Path
    model: Path
    weights: dict[int, dict[str, torch.Tensor]]

    @property
    def deployment(self) -> Deployment:
        return read_deployment(self.file)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.deployment.state_path / "ledger.sqlite", self.deployment.ledger)

    def forget(self, number: int) -> None:
        """As pruning does."""
        with self.ledger as ledger:
            version = ledger.version(number)
        assert version is not None
        shutil.rmtree(version.snapshot)


def trained_deployment(root: Path, versions: int = 3, kind: str = "llama") -> Trained:
    model = build_tiny_model(root / "model", kind=kind)
    (model / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    file = root / "deployment.yaml"
    settings = tiny_deployment(model, 1, state_dir=str(root / "state"))
    file.write_text(yaml.safe_dump(settings))
    trained = Trained(file=file, model=model, weights={})
    with trained.ledger as ledger:
        for number in range(versions):
            policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter += 0.01 * number
            tensors = dict(full_parameters(policy))
            trained.weights[number] = tensors
            _commit(ledger, root, build_manifest(number, tensors, bucket_bytes=1 << 20), tensors)
    return trained


def publish_adapters(trained: Trained, number: int) -> dict[str, torch.Tensor]:
    """Adapters alone, added to version 0, become version ``number``; returns its whole weights."""
    root, base = trained.file.parent, build_manifest(0, trained.weights[0], bucket_bytes=1 << 20)
    shape = AdapterShape(rank=2, alpha=4.0, targets=("q_proj",))
    specs = expected_adapters({spec.name: spec for spec in base.tensors}, shape)
    adapters = {spec.name: torch.full(spec.shape, 0.1) for spec in specs}
    addition = Addition(shape=shape, base_version=0, base_digest=base.digest)
    with trained.ledger as ledger:
        _commit(ledger, root, build_manifest(number, adapters, bucket_bytes=1 << 20, addition=addition), adapters)
    return merge(trained.weights[0], adapters, shape)


def _commit(ledger: Ledger, root: Path, manifest: WeightManifest, tensors: dict[str, torch.Tensor]) -> None:
    snapshot = write_snapshot(root / "state" / "snapshots", manifest, tensors)
    ledger.commit_version(
        PolicyVersion(
            version=manifest.version,
            step=2 * manifest.version,
            snapshot=str(snapshot),
            digest=manifest.digest,
            published_at=time.time(),
        )
    )
