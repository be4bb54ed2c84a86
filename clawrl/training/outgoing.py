"""What a version consists of when it leaves the trainer: whole weights, or adapters alone and what they are added to.

Adapters alone need the weights below them on disk, for replicas that hold others and for those that come later: a
snapshot of exactly these is looked for, and written where there is none. Which weights those are changes only with a
rewind, or with the run; until a publish of theirs has succeeded they are gathered each time. Whole weights that
adapters are merged into leave with these beside them, so that a rewind can take them back.

`Outgoing.whole` and `Outgoing.version` are collectives; a manifest is made by the rank that sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from clawrl.messages import AdapterShape, Addition, WeightManifest
from clawrl.training.lora import adapter_tensors, base_tensors
from clawrl.training.model import full_parameters
from clawrl.weights.adapters import merge
from clawrl.weights.kept import snapshot_name
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import (
    Learned,
    SnapshotError,
    read_base,
    read_learned,
    read_manifest,
    read_snapshot,
    write_snapshot,
)


@dataclass(frozen=True, slots=True)
class Contents:
    """A version on its way out. ``describe`` takes its number, and puts on disk what it is an addition to."""

    tensors: dict[str, torch.Tensor]
    describe: Callable[[int], WeightManifest]
    learned: Learned | None = None


class Outgoing:
    """``shape`` is that of the model's adapters, if it has any, ``alone`` the same if they are published alone.

    ``snapshots`` is the folder of all versions.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        snapshots: Path,
        *,
        alone: AdapterShape | None,
        bucket_bytes: int,
        shape: AdapterShape | None = None,
    ) -> None:
        self._model = model
        self._snapshots = snapshots
        self._alone = alone
        self._shape = shape
        self._bucket_bytes = bucket_bytes
        self._base: WeightManifest | None = None
        self._settled = False

    def whole(self) -> Contents:
        tensors = dict(full_parameters(self._model))
        learned = None
        if self._shape is not None:
            learned = Learned(shape=self._shape, tensors=dict(adapter_tensors(self._model)))
        return Contents(
            tensors, lambda version: build_manifest(version, tensors, bucket_bytes=self._bucket_bytes), learned
        )

    def version(self) -> Contents:
        if self._alone is None:
            return self.whole()
        shape, tensors = self._alone, dict(adapter_tensors(self._model))
        # Whether to gather must be decided alike on all ranks, which know only how the publish ended.
        below = {} if self._settled else dict(base_tensors(self._model))

        def describe(version: int) -> WeightManifest:
            if self._base is None:
                self._base = self._stored(version, below)
            addition = Addition(shape=shape, base_version=self._base.version, base_digest=self._base.digest)
            return build_manifest(version, tensors, bucket_bytes=self._bucket_bytes, addition=addition)

        return Contents(tensors, describe)

    def settle(self) -> None:
        """On all ranks, after a publish that succeeded: the weights below need not be gathered again."""
        self._settled = True

    def rewound(self) -> None:
        """On all ranks: the weights below the adapters may be others now."""
        self._base, self._settled = None, False

    @property
    def needed(self) -> list[Path]:
        """Snapshots that must stay on disk for what will be published next."""
        return [] if self._base is None else [self._snapshots / snapshot_name(self._base.version, self._base.digest)]

    def _stored(self, version: int, tensors: dict[str, torch.Tensor]) -> WeightManifest:
        """The manifest of a snapshot of ``tensors``; one that has to be written is numbered ``version``."""
        manifest = build_manifest(version, tensors, bucket_bytes=self._bucket_bytes)
        for folder in sorted(self._snapshots.glob(f"v*-{manifest.digest[:12]}")):
            try:
                found = read_manifest(folder)
            except SnapshotError:
                continue
            if found.digest == manifest.digest:
                return found
        write_snapshot(self._snapshots, manifest, tensors)
        return manifest


def read_to_rewind(folder: Path, shape: AdapterShape | None) -> dict[str, torch.Tensor]:
    """The weights of a version for a trainer whose adapters have ``shape``: apart from its adapters if they fit.

    Of whole weights with such adapters merged in, the adapters alone: nothing else is read.
    """
    if shape is not None and read_manifest(folder).addition is None:
        learned = read_learned(folder)
        if learned is not None and learned.shape == shape:
            return dict(learned.tensors)
    manifest, tensors = read_snapshot(folder)
    if manifest.addition is None:
        return tensors
    _, base = read_base(folder, manifest)
    return {**base, **tensors} if manifest.addition.shape == shape else merge(base, tensors, manifest.addition.shape)
