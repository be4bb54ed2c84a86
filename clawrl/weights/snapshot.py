"""A policy version on disk: one safetensors file and its manifest, for replicas that come later.

A snapshot appears under its final name only when it is whole (written aside, synced, renamed), so a crash
leaves nothing that looks like a version. Reading checks the digest. Old snapshots are removed by `prune`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from clawrl.messages import TensorSpec, WeightKind, WeightManifest
from clawrl.weights.manifest import as_bytes, digest_of


class SnapshotError(RuntimeError):
    """A snapshot is missing or is not what its manifest says."""


def write_snapshot(root: Path, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Store a version under ``root`` and return its folder."""
    folder = root / f"v{manifest.version:06d}-{manifest.digest[:12]}"
    if folder.is_dir():
        return folder
    aside = root / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside / "model.safetensors")
    (aside / "manifest.json").write_text(json.dumps(dataclasses.asdict(manifest)))
    for part in aside.iterdir():
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
    aside.rename(folder)
    return folder


def read_manifest(folder: Path) -> WeightManifest:
    """What the snapshot says of itself; its bytes are not looked at. Raises `SnapshotError`."""
    try:
        return _manifest_from(json.loads((folder / "manifest.json").read_text()))
    except (OSError, KeyError, ValueError) as error:
        raise SnapshotError(f"the snapshot {folder} cannot be read: {error}") from error


def read_snapshot(folder: Path) -> tuple[WeightManifest, dict[str, torch.Tensor]]:
    """The manifest and the tensors, in manifest order, digest checked. Raises `SnapshotError`."""
    manifest = read_manifest(folder)
    try:
        loaded = load_file(folder / "model.safetensors")
        tensors = {spec.name: loaded[spec.name] for spec in manifest.tensors}
    except (OSError, KeyError, SafetensorError) as error:
        raise SnapshotError(f"the snapshot {folder} cannot be read: {error}") from error
    check_digest(folder, manifest, (as_bytes(tensor) for tensor in tensors.values()))
    return manifest, tensors


def check_digest(folder: Path, manifest: WeightManifest, payloads: Iterator[torch.Tensor]) -> None:
    """Raises `SnapshotError` unless these bytes, tensor by tensor, are those of ``manifest``."""
    found = digest_of(manifest.tensors, payloads)
    if found != manifest.digest:
        raise SnapshotError(f"the snapshot {folder} has digest {found[:12]}, its manifest says {manifest.digest[:12]}")


def prune(root: Path, keep: int, *, spare: Collection[Path] = ()) -> None:
    """Remove all but the ``keep`` newest snapshots (never those in ``spare``) and what was never finished."""
    if not root.is_dir():
        return
    for unfinished in root.glob(".v*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path.name.startswith("v"))
    for folder in folders[:-keep]:
        if folder not in spare:
            shutil.rmtree(folder, ignore_errors=True)


def _manifest_from(data: dict[str, Any]) -> WeightManifest:
    tensors = tuple(TensorSpec(name=t["name"], dtype=t["dtype"], shape=tuple(t["shape"])) for t in data["tensors"])
    return WeightManifest(
        version=int(data["version"]),
        kind=WeightKind(data["kind"]),
        tensors=tensors,
        buckets=tuple((int(start), int(end)) for start, end in data["buckets"]),
        digest=str(data["digest"]),
    )
