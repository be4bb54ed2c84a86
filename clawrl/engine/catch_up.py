"""Bring an engine to a published version from its snapshot, where no broadcast is under way."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from clawrl.engine.protocol import Engine
from clawrl.messages import PolicyVersion, WeightManifest
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import read_manifest, read_whole, write_snapshot
from clawrl.weights.sources import OnDisk

_BUCKET_BYTES = 2**26


async def catch_up(engine: Engine, version: PolicyVersion) -> None:
    """Make ``engine`` serve ``version``, under its own number: rolling back publishes old weights under a new one."""
    folder = Path(version.snapshot)
    stored = await asyncio.to_thread(read_manifest, folder)
    if stored.kind not in engine.capabilities.weight_kinds:
        folder, stored = await asyncio.to_thread(_merged, folder, version.version)
    await engine.prepare(dataclasses.replace(stored, version=version.version), folder)
    await engine.receive(OnDisk(folder=str(folder)))
    await engine.commit(version.version)


def _merged(folder: Path, version: int) -> tuple[Path, WeightManifest]:
    """A snapshot beside that in ``folder``, of whole weights, for an engine that takes no adapters.

    Such versions are from before ``publish.adapters`` was set to merged, or for an engine that has no adapters. The
    snapshot goes like any other that is old.
    """
    whole = read_whole(folder)
    manifest = build_manifest(version, whole, bucket_bytes=_BUCKET_BYTES)
    return write_snapshot(folder.parent, manifest, whole), manifest
