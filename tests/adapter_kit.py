"""Adapters for tests: random ones for a tiny model, their snapshots, and what the model says with them merged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from clawrl.messages import AdapterShape, Addition, WeightManifest
from clawrl.weights.adapters import expected_adapters, merge
from clawrl.weights.fetch import Library, Reader
from clawrl.weights.manifest import build_manifest, dtype_of, spec_of
from clawrl.weights.snapshot import base_of, write_snapshot
from tests.engine_tools import weights_of
from tests.sglang_kit import cold_model

SHAPE = AdapterShape(
    rank=4, alpha=12.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
)
Tensors = Mapping[str, torch.Tensor]


def random_adapters(base: Tensors, seed: int, shape: AdapterShape = SHAPE) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    specs = {name: spec_of(name, tensor) for name, tensor in base.items()}
    return {
        spec.name: torch.empty(spec.shape).uniform_(-0.2, 0.2, generator=generator).to(dtype_of(spec))
        for spec in expected_adapters(specs, shape)
    }


@dataclass
class Base:
    """The whole weights of a model folder, as the snapshot of ``version`` under ``root``."""

    folder: Path
    root: Path
    version: int = 0

    def __post_init__(self) -> None:
        self.tensors = weights_of(self.folder)
        self.manifest = build_manifest(self.version, self.tensors, bucket_bytes=60_000)
        self.snapshot = write_snapshot(self.root, self.manifest, self.tensors)

    def addition(self, shape: AdapterShape = SHAPE) -> Addition:
        return Addition(shape=shape, base_version=self.version, base_digest=self.manifest.digest)

    def version_of(self, version: int, adapters: Tensors) -> tuple[WeightManifest, Path]:
        """The manifest and the snapshot of these adapters on this base."""
        manifest = build_manifest(version, adapters, bucket_bytes=6_000, addition=self.addition())
        return manifest, write_snapshot(self.root, manifest, adapters)

    def merged(self, adapters: Tensors) -> torch.nn.Module:
        return cold_model(self.folder, merge(self.tensors, adapters, SHAPE))


def library_in(folder: Path) -> Library:
    """Of a replica that sees the snapshots' folder, and has one of its own below ``folder``."""
    reader = cast(Reader, None)
    return Library(reader, folder / "copies", "replica", base_of=base_of)
