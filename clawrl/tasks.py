"""Work that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
# An event loop holds its tasks weakly: what nobody else holds could vanish in the middle.
_held: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start ``work`` on the running loop and keep it until it is done. Its errors are its own to handle."""
    task = asyncio.get_running_loop().create_task(work)
    _held.add(task)
    task.add_done_callback(_held.discard)
    return task
