"""A policy version on disk: one safetensors file and its manifest, for replicas that come later.

Adapters are alone in theirs. The whole weights that they are an addition to are a snapshot beside it (`base_folder`),
which `prune` keeps for as long as it keeps the adapters.

Whole weights that adapters were merged into have those beside them (`Learned`), for the trainer alone: it can go back
to them and leave what they were added to as it is. Nobody who loads the weights looks at that file.

A snapshot appears under its final name only when it is whole (written aside, synced, renamed), so a crash
leaves nothing that looks like a version. Reading checks the digest. Old snapshots are removed by `prune`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from clawrl.durable import sync_path
from clawrl.messages import AdapterShape, Addition, TensorSpec, WeightKind, WeightManifest
from clawrl.weights.adapters import merge
from clawrl.weights.kept import snapshot_name
from clawrl.weights.manifest import as_bytes, digest_of, spec_of

# Engines load every *.safetensors of a folder.
_LEARNED = "adapters.st"
_ASIDE = ".aside-"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The adapters of ``shape`` that were merged into a version."""

    shape: AdapterShape
    tensors: Mapping[str, torch.Tensor]


class SnapshotError(RuntimeError):
    """A snapshot is missing or is not what its manifest says."""


def write_snapshot(
    root: Path, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor], learned: Learned | None = None
) -> Path:
    """Store a version under ``root`` and return its folder."""
    folder = root / snapshot_name(manifest.version, manifest.digest)
    if folder.is_dir():
        return folder
    # Of its own, whoever else stores the same version at this moment.
    aside = root / f".{folder.name}.{uuid.uuid4().hex}"
    aside.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside / "model.safetensors")
    if learned is not None:
        ordered = dict(sorted(learned.tensors.items()))
        specs = [spec_of(name, tensor) for name, tensor in ordered.items()]
        said = {"digest": digest_of(specs, map(as_bytes, ordered.values()))}
        said["shape"] = json.dumps(dataclasses.asdict(learned.shape))
        save_file({name: tensor.contiguous() for name, tensor in learned.tensors.items()}, aside / _LEARNED, said)
    (aside / "manifest.json").write_text(json.dumps(dataclasses.asdict(manifest)))
    for part in aside.iterdir():
        sync_path(part)
    try:
        os.replace(aside, folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(aside)  # somebody else stored the same version meanwhile
    return folder


def base_folder(folder: Path, manifest: WeightManifest) -> Path | None:
    """Where the whole weights lie that the adapters in ``folder`` are an addition to; ``None`` for whole weights."""
    addition = manifest.addition
    if addition is None:
        return None
    return folder.parent / snapshot_name(addition.base_version, addition.base_digest)


def read_base(folder: Path, manifest: WeightManifest) -> tuple[WeightManifest, dict[str, torch.Tensor]]:
    """The whole weights that the adapters in ``folder``, of ``manifest``, are added to. Raises `SnapshotError`."""
    where, addition = base_folder(folder, manifest), manifest.addition
    assert where is not None and addition is not None
    try:
        base, tensors = read_snapshot(where)
        if base.digest != addition.base_digest:
            raise SnapshotError(f"the snapshot {where} has another digest")
    except SnapshotError as error:
        raise SnapshotError(
            f"version {manifest.version} is an addition to version {addition.base_version} with digest "
            f"{addition.base_digest[:12]}, which cannot be had: {error}"
        ) from error
    return base, tensors


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """A version's weights under the model's own names, its adapters added in if it has any. Raises `SnapshotError`."""
    manifest, tensors = read_snapshot(folder)
    if manifest.addition is None:
        return tensors
    _, base = read_base(folder, manifest)
    return merge(base, tensors, manifest.addition.shape)


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


def read_learned(folder: Path) -> Learned | None:
    """The adapters that are in these whole weights, if they were kept beside them. Raises `SnapshotError`."""
    path = folder / _LEARNED
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            said, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it has no other way
        shape = _shape_from(json.loads(said["shape"]))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error
    # The file has them in an order of its own.
    specs = {name: spec_of(name, tensor) for name, tensor in sorted(tensors.items())}
    if digest_of(list(specs.values()), (as_bytes(tensors[name]) for name in specs)) != said["digest"]:
        raise SnapshotError(f"{path} is not what was written")
    return Learned(shape=shape, tensors=tensors)


def check_digest(folder: Path, manifest: WeightManifest, payloads: Iterator[torch.Tensor]) -> None:
    """Raises `SnapshotError` unless these bytes, tensor by tensor, are those of ``manifest``."""
    found = digest_of(manifest.tensors, payloads)
    if found != manifest.digest:
        raise SnapshotError(f"the snapshot {folder} has digest {found[:12]}, its manifest says {manifest.digest[:12]}")


def prune(
    root: Path,
    keep: int,
    *,
    spare: Collection[Path] = (),
    in_use: Callable[[], Collection[Path]] = lambda: (),
) -> None:
    """Remove all but the ``keep`` newest snapshots and what was never finished.

    Never those in ``spare``, nor those that one which stays is an addition to. ``in_use`` is asked when the others are
    put aside, where nobody finds them, and before they are deleted: what it names comes back. So who makes a version
    current that is there, and says so from then on, never loses it.
    """
    if not root.is_dir():
        return
    put_back(root)
    for unfinished in root.glob(".v*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path.name.startswith("v"))
    kept = {*folders[-keep:], *spare}
    kept |= {base for folder in kept if (base := base_of(folder)) is not None}
    aside = {folder: folder.rename(root / f"{_ASIDE}{folder.name}") for folder in folders if folder not in kept}
    try:
        needed = in_use() if aside else ()
    except BaseException:
        put_back(root)
        raise
    for folder in needed:
        base = folder
        while base is not None and base in aside:
            aside.pop(base).rename(base)
            base = base_of(base)
    for unwanted in aside.values():
        shutil.rmtree(unwanted, ignore_errors=True)


def put_back(root: Path) -> None:
    """Snapshots that were put aside by somebody who died before they were deleted."""
    for path in root.glob(f"{_ASIDE}v*"):
        path.rename(root / path.name.removeprefix(_ASIDE))


def base_of(folder: Path) -> Path | None:
    """`base_folder` of the snapshot in ``folder``; ``None`` also for one that cannot be read."""
    try:
        return base_folder(folder, read_manifest(folder))
    except SnapshotError:
        return None


def _manifest_from(data: dict[str, Any]) -> WeightManifest:
    tensors = tuple(TensorSpec(name=t["name"], dtype=t["dtype"], shape=tuple(t["shape"])) for t in data["tensors"])
    return WeightManifest(
        version=int(data["version"]),
        kind=WeightKind(data["kind"]),
        tensors=tensors,
        buckets=tuple((int(start), int(end)) for start, end in data["buckets"]),
        digest=str(data["digest"]),
        # Snapshots from before adapters were published alone have no such entry.
        addition=_addition_from(data.get("addition")),
    )


def _addition_from(data: dict[str, Any] | None) -> Addition | None:
    if data is None:
        return None
    return Addition(
        shape=_shape_from(data["shape"]),
        base_version=int(data["base_version"]),
        base_digest=str(data["base_digest"]),
    )


def _shape_from(data: dict[str, Any]) -> AdapterShape:
    return AdapterShape(rank=int(data["rank"]), alpha=float(data["alpha"]), targets=tuple(data["targets"]))
