"""A folder of safetensors, read one tensor at a time: a model's own, or a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from clawrl.messages import TensorSpec, WeightManifest
from clawrl.weights.manifest import as_bytes
from clawrl.weights.snapshot import SnapshotError, check_digest


class TensorFolder:
    """Files are mapped, not read; a tensor costs memory only while it is held. Raises `SnapshotError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._where: dict[str, Any] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise SnapshotError(f"{folder} holds no safetensors, or cannot be read from this machine")
        for file in files:
            try:
                handle = safe_open(file, framework="pt")
            except (OSError, SafetensorError) as error:
                raise SnapshotError(f"{file} cannot be read: {error}") from error
            self._where |= dict.fromkeys(handle.keys(), handle)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    @property
    def names(self) -> list[str]:
        return list(self._where)

    def tensor(self, name: str) -> torch.Tensor:
        loaded: torch.Tensor = self._where[name].get_tensor(name)
        return loaded

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._where[name].get_slice(name).get_shape())

    def check(self, manifest: WeightManifest) -> None:
        """Raises `SnapshotError` unless the folder holds exactly the bytes of ``manifest``."""

        def payload(spec: TensorSpec) -> torch.Tensor:
            if spec.name not in self:
                raise SnapshotError(f"the snapshot {self.folder} has no {spec.name}")
            return as_bytes(self.tensor(spec.name))

        check_digest(self.folder, manifest, map(payload, manifest.tensors))
