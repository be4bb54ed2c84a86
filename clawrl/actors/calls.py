"""Calling the coordinator, which may be away for a moment, and the trainer's driver.

The coordinator is a detached named actor that Ray restarts for ever and whose calls are idempotent. So a
call that fails because it died is simply made again, by name, until it answers or the time is up. What it
*raises* is an answer and is passed on.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Coroutine
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

NAMESPACE = "clawrl"
_PAUSE_S = 0.25


class CoordinatorAway(RuntimeError):
    """The coordinator did not answer in the time given."""


def coordinator_name(deployment: str) -> str:
    return f"{deployment}-coordinator"


def driver_name(deployment: str) -> str:
    return f"{deployment}-trainer"


class Coordinator:
    """A handle on the coordinator of one deployment: `ask` from a coroutine, `ask_now` from a plain thread."""

    def __init__(self, deployment: str) -> None:
        self._name = coordinator_name(deployment)

    async def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        problem: Exception | None = None
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    return await self._call(method, arguments)
            except TimeoutError as error:
                problem = error
            except (RayActorError, ValueError) as error:
                if not _is_away(error):
                    raise
                problem = error
                await asyncio.sleep(min(_PAUSE_S, max(deadline - time.monotonic(), 0.0)))
        raise CoordinatorAway(f"{method}: no answer in {timeout_s} s ({problem})") from problem

    def ask_now(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        problem: Exception | None = None
        while (left := deadline - time.monotonic()) > 0:
            try:
                return ray.get(self._call(method, arguments), timeout=left)
            except GetTimeoutError as error:
                problem = error
            except (RayActorError, ValueError) as error:
                if not _is_away(error):
                    raise
                problem = error
                time.sleep(min(_PAUSE_S, max(deadline - time.monotonic(), 0.0)))
        raise CoordinatorAway(f"{method}: no answer in {timeout_s} s ({problem})") from problem

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        # Looked up each time: a name leads to the actor that lives now.
        actor = ray.get_actor(self._name, namespace=NAMESPACE)
        return getattr(actor, method).remote(*arguments)


def tell_begun(deployment: str) -> None:
    """Tell the driver that the ranks on these seats are up. Not waited for: a driver that is gone ends them."""
    driver = ray.get_actor(driver_name(deployment), namespace=NAMESPACE)
    driver.begun.remote(ray.get_runtime_context().get_placement_group_id())


class Background:
    """Work that outlives the request that asked for it.

    When a client goes away Ray cancels its request and every call made on the request's behalf, which it knows by the
    context that a task inherits. So these tasks get a context of their own.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, *, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)


def _is_away(error: Exception) -> bool:
    """A dead or unborn actor, as opposed to an error that the actor raised. `ray.get_actor` says ValueError."""
    if isinstance(error, RayTaskError):
        return False
    return isinstance(error, RayActorError) or "Failed to look up actor" in str(error)
