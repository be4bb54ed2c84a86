"""Bring an engine to a published version from its snapshot, where no broadcast is under way."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from pathlib import Path

from clawrl.engine.protocol import Engine
from clawrl.messages import PolicyVersion
from clawrl.weights.fetch import Library
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import read_manifest, read_whole, write_snapshot
from clawrl.weights.sources import OnDisk

_BUCKET_BYTES = 2**26


async def catch_up(engine: Engine, version: PolicyVersion, library: Library) -> None:
    """Make ``engine`` serve ``version``, under its own number: rolling back publishes old weights under a new one.

    Its snapshot must be readable here. An engine that takes no adapters gets whole weights, made in ``library``: such
    versions are from before ``publish.adapters`` was set to merged, or for an engine that has no adapters.
    """
    folder = Path(version.snapshot)
    stored = await asyncio.to_thread(read_manifest, folder)
    if stored.kind not in engine.capabilities.weight_kinds:
        merge = functools.partial(_merged, folder, version.version)
        folder = await library.make(version.version, merge, held=engine.version)
        stored = await asyncio.to_thread(read_manifest, folder)
    await engine.prepare(dataclasses.replace(stored, version=version.version), folder)
    await engine.receive(OnDisk(folder=str(folder)))
    await engine.commit(version.version)


def _merged(folder: Path, version: int, room: Path) -> Path:
    whole = read_whole(folder)
    return write_snapshot(room, build_manifest(version, whole, bucket_bytes=_BUCKET_BYTES), whole)
