"""Bring an engine to a published version from its snapshot, where no broadcast is under way."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from clawrl.engine.protocol import Engine
from clawrl.messages import PolicyVersion
from clawrl.weights.manifest import pack_bucket
from clawrl.weights.snapshot import read_snapshot


async def catch_up(engine: Engine, version: PolicyVersion) -> None:
    """Make ``engine`` serve ``version``, under its own number: rolling back publishes old weights under a new one."""
    stored, tensors = await asyncio.to_thread(read_snapshot, Path(version.snapshot))
    manifest = dataclasses.replace(stored, version=version.version)
    await engine.prepare(manifest)
    for bucket in range(len(manifest.buckets)):
        await engine.receive(bucket, pack_bucket(manifest, bucket, tensors))
    await engine.commit(version.version)
