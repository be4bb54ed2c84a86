"""A replica's ear to the coordinator: it polls for commands about weights and carries them out, one at a time.

Runs beside generation and takes no slot. Before it serves, a replica loads the current version, becomes a member and
waits for its admission: between the two, publishes count it already. When the coordinator is away nothing can be
published, so the replica serves on with what it has and keeps asking. One that cannot catch up to the current version
reports itself unhealthy, so that Serve replaces it.

A replica that Serve drains says goodbye at once: publishes do not wait for it, it takes no new version, and its
requests end under the one that it holds. What it was receiving it receives to the end, for the sake of the others, and
drops it.

A snapshot that has to be copied from another machine is copied beside all this (`Fetch`, `CatchUp`): the coordinator
asks until it is here, and is answered within moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clawrl.actors.calls import Coordinator, CoordinatorAway
from clawrl.engine.catch_up import catch_up
from clawrl.engine.errors import EngineError
from clawrl.engine.protocol import Engine
from clawrl.messages import PolicyVersion
from clawrl.weights.copying import Copying
from clawrl.weights.fetch import Library
from clawrl.weights.members import (
    COPYING,
    Abort,
    Admit,
    CatchUp,
    Command,
    Commit,
    Fetch,
    Order,
    Outcome,
    Prepare,
    Receive,
)
from clawrl.weights.sources import OnDisk

log = logging.getLogger(__name__)
_POLL_S = 5.0
_TRIES = 3
_LOOK_S = 0.25
_GOODBYE_S = 5.0
_COPY_LOOK_S = 1.0


class ReplicaControl:
    """``stats`` is asked at every poll and shown in the status; ``draining``: Serve is taking the replica away."""

    def __init__(
        self,
        replica: str,
        engine: Engine,
        coordinator: Coordinator,
        stats: Callable[[], Mapping[str, Any]],
        *,
        library: Library,
        draining: Callable[[], bool],
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._coordinator = coordinator
        self._stats = stats
        self._library = library
        self._copying = Copying(library)
        self._draining = draining
        self._failures = 0
        self._preparing = engine.version
        self._admitted = asyncio.Event()
        self._leaving = False
        self._poll: asyncio.Task[Order | None] | None = None
        # Held while a command is carried out.
        self._hands = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def join(self, *, timeout_s: float) -> None:
        """Load the current version, become a member, wait for the word. Before that, serve nothing."""
        current: PolicyVersion | None = await self._coordinator.ask("current_version", timeout_s=timeout_s)
        if current is not None and current.version != self._engine.version:
            await self._catch_up(current)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._listen())
        while not self._admitted.is_set():
            # Serve asks after a replica's health only once it serves.
            self.check()
            self._engine.health()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._admitted.wait()
        self._watch = loop.create_task(self._watch_for_the_end())

    async def leave(self) -> None:
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._withdraw()
                async with self._hands:
                    pass
        except TimeoutError:
            log.warning("left in the middle of a command")
        for task in (self._watch, self._task):
            if task is not None:
                task.cancel()
        await self._copying.stop()
        await self._library.close()

    def check(self) -> None:
        if self._failures >= _TRIES:
            raise EngineError(f"could not catch up to the current version {self._failures} times in a row")
        if self._task is not None and self._task.done() and not self._leaving:
            raise EngineError("the control loop ended")

    async def _watch_for_the_end(self) -> None:
        while not self._draining():
            await asyncio.sleep(_LOOK_S)
        log.info("draining with version %d", self._engine.version)
        await self._withdraw()

    async def _withdraw(self) -> None:
        """Take part in nothing any more. What was received and not committed is dropped."""
        if self._leaving:
            return
        self._leaving = True
        # One that is repeated until a coordinator answers would sign on again with the next coordinator.
        if self._poll is not None:
            self._poll.cancel()
        try:
            await self._coordinator.ask("leave", self._replica, timeout_s=2.0)
        except CoordinatorAway:
            log.info("the coordinator is away; it will forget this replica by itself")
        async with self._hands:
            await self._engine.abort()

    async def _listen(self) -> None:
        while not self._leaving:
            try:
                order = await self._next_order()
                if order is None:
                    continue
                async with self._hands:
                    if self._leaving:
                        return
                    outcome = await self._carry_out(order.command)
                await self._coordinator.ask(
                    "report", self._replica, order.number, self._engine.version, outcome, timeout_s=_POLL_S
                )
            except CoordinatorAway as away:
                log.warning("still serving version %d: %s", self._engine.version, away)
            except Exception:
                # Whatever the coordinator chokes on, this replica must not go deaf.
                log.exception("a command got lost; still serving version %d", self._engine.version)
                await asyncio.sleep(1.0)

    async def _next_order(self) -> Order | None:
        self._poll = asyncio.ensure_future(
            self._coordinator.ask(
                "poll", self._replica, self._engine.version, self._figures(), _POLL_S, timeout_s=3 * _POLL_S
            )
        )
        try:
            return await self._poll
        except asyncio.CancelledError:
            if self._leaving and self._poll.cancelled():
                return None
            self._poll.cancel()
            raise

    def _figures(self) -> dict[str, Any]:
        ranks, serving = self._engine.capabilities.ranks, self._admitted.is_set()
        return {**self._stats(), **self._engine.stats(), "ranks": ranks, "serving": serving}

    async def _carry_out(self, command: Command) -> Outcome:
        """Errors are answers here: the coordinator decides what a failure means."""
        try:
            stats = await self._do(command)
        except Exception as error:
            log.warning("%s failed: %s", type(command).__name__, error)
            if isinstance(command, CatchUp):
                self._failures += 1
            return Outcome(ok=False, detail=f"replica {self._replica}: {type(error).__name__}: {error}")
        return Outcome(ok=True, stats=stats)

    async def _do(self, command: Command) -> dict[str, Any]:
        match command:
            case Fetch(snapshot=snapshot, version=number, read_by_all=all_read):
                if all_read or self._engine.capabilities.reads_snapshots:
                    return {COPYING: await self._copied(snapshot, number) is None}
            case Prepare(manifest=manifest, snapshot=snapshot):
                folder = Path(snapshot)
                if self._engine.capabilities.reads_snapshots:
                    folder = await self._local(snapshot, manifest.version)
                self._preparing = manifest.version
                await self._engine.prepare(manifest, folder)
            case Receive(source=OnDisk(folder=snapshot)):
                folder = await self._local(snapshot, self._preparing)
                await self._engine.receive(OnDisk(folder=str(folder)))
            case Receive(source=source):
                await self._engine.receive(source)
            case Commit(version=version):
                report = await self._engine.commit(version)
                return {"hold_ms": 1000 * report.hold_s, "carried": report.requests_carried}
            case Abort():
                await self._engine.abort()
            case CatchUp(version=current):
                if current.version != self._engine.version:
                    if await self._copied(current.snapshot, current.version) is None:
                        return {COPYING: True}
                    await self._catch_up(current)
                self._failures = 0
            case Admit():
                self._admitted.set()
        return {}

    async def _catch_up(self, version: PolicyVersion) -> None:
        folder = await self._local(version.snapshot, version.version)
        await catch_up(self._engine, dataclasses.replace(version, snapshot=str(folder)), self._library)

    async def _copied(self, snapshot: str, version: int) -> Path | None:
        """``None`` while it is still on its way."""
        return await self._copying.here(Path(snapshot), version, held=self._engine.version, within_s=_COPY_LOOK_S)

    async def _local(self, snapshot: str, version: int) -> Path:
        return await self._library.local(Path(snapshot), version, held=self._engine.version)
