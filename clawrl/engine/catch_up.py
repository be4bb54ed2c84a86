"""Bring an engine to a published version from its snapshot, where no broadcast is under way."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from clawrl.engine.protocol import Engine
from clawrl.messages import PolicyVersion
from clawrl.weights.snapshot import read_manifest
from clawrl.weights.sources import OnDisk


async def catch_up(engine: Engine, version: PolicyVersion) -> None:
    """Make ``engine`` serve ``version``, under its own number: rolling back publishes old weights under a new one."""
    folder = Path(version.snapshot)
    stored = await asyncio.to_thread(read_manifest, folder)
    await engine.prepare(dataclasses.replace(stored, version=version.version), folder)
    await engine.receive(OnDisk(folder=version.snapshot))
    await engine.commit(version.version)
