"""A replica's ear to the coordinator: it polls for commands about weights and carries them out, one at a time.

Runs beside generation and takes no slot. When the coordinator is away nothing can be published, so the
replica serves on with what it has and keeps asking. A replica that cannot catch up to the current version
reports itself unhealthy, so that Serve replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clawrl.actors.calls import Coordinator, CoordinatorAway
from clawrl.engine.catch_up import catch_up
from clawrl.engine.errors import EngineError
from clawrl.engine.protocol import Engine
from clawrl.messages import PolicyVersion
from clawrl.weights.members import Abort, CatchUp, Command, Commit, Outcome, Prepare, Receive

log = logging.getLogger(__name__)
_POLL_S = 5.0
_TRIES = 3


class ReplicaControl:
    """``stats`` is asked at every poll and shown in the status."""

    def __init__(
        self, replica: str, engine: Engine, coordinator: Coordinator, stats: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._coordinator = coordinator
        self._stats = stats
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    async def join(self, *, timeout_s: float) -> None:
        """Load the current version, again if it changed meanwhile, then start listening. Before this, serve nothing."""
        while True:
            current: PolicyVersion | None = await self._coordinator.ask("current_version", timeout_s=timeout_s)
            if current is None or current.version == self._engine.version:
                break
            await catch_up(self._engine, current)
        self._task = asyncio.get_running_loop().create_task(self._listen())

    async def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
        try:
            await self._coordinator.ask("leave", self._replica, timeout_s=2.0)
        except CoordinatorAway:
            log.info("the coordinator is away; it will forget this replica by itself")

    def check(self) -> None:
        if self._failures >= _TRIES:
            raise EngineError(f"could not catch up to the current version {self._failures} times in a row")
        if self._task is not None and self._task.done():
            raise EngineError("the control loop ended")

    async def _listen(self) -> None:
        while True:
            try:
                order = await self._coordinator.ask(
                    "poll", self._replica, self._engine.version, self._figures(), _POLL_S, timeout_s=3 * _POLL_S
                )
                if order is None:
                    continue
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

    def _figures(self) -> dict[str, Any]:
        return {**self._stats(), **self._engine.stats(), "ranks": self._engine.capabilities.ranks}

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
            case Prepare(manifest=manifest, snapshot=snapshot):
                await self._engine.prepare(manifest, Path(snapshot))
            case Receive(source=source):
                await self._engine.receive(source)
            case Commit(version=version):
                report = await self._engine.commit(version)
                return {"hold_ms": 1000 * report.hold_s, "carried": report.requests_carried}
            case Abort():
                await self._engine.abort()
            case CatchUp(version=version):
                if version.version != self._engine.version:
                    await catch_up(self._engine, version)
                self._failures = 0
        return {}
