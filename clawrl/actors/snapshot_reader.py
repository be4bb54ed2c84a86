"""Reads snapshots on the head node, where the state folder is, for replicas of other nodes.

Small tasks on the head node, each of one chunk, whose result travels through Ray's object store: nothing of it passes
through the coordinator, and nothing has to be kept alive.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import ray
from ray.exceptions import RayError

from clawrl.weights.fetch import SnapshotUnreachable, read_here, sizes_here

_CHUNK_TIMEOUT_S = 120.0


class HeadReader:
    async def sizes(self, folder: str) -> Mapping[str, int]:
        return cast(Mapping[str, int], await _on_head(sizes_here, folder))

    async def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        return cast(bytes, await _on_head(read_here, folder, name, offset, size))


@functools.cache
def _remote(work: Callable[..., Any]) -> Any:
    """Made once: Ray keeps every remote function for as long as the job lives."""
    return ray.remote(work)


async def _on_head(work: Callable[..., Any], *arguments: Any) -> Any:
    task = _remote(work).options(
        num_cpus=0,
        resources={"node:__internal_head__": 0.001},
        # Not within the placement group of the replica that asks.
        scheduling_strategy="DEFAULT",
        name="read_snapshot",
    )
    try:
        async with asyncio.timeout(_CHUNK_TIMEOUT_S):
            return await task.remote(*arguments)
    except SnapshotUnreachable:
        raise
    except (RayError, TimeoutError) as error:
        raise SnapshotUnreachable(f"{arguments[0]} cannot be read on the head node: {error!r}") from error
