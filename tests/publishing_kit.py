"""A publish without a cluster: replicas are coroutines that poll, transfers are not real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from clawrl.messages import AdapterShape, Addition, PolicyVersion, WeightKind, WeightManifest
from clawrl.weights.config import PublishConfig
from clawrl.weights.members import (
    COPYING,
    Abort,
    CatchUp,
    Command,
    Commit,
    Fetch,
    Members,
    Outcome,
    Prepare,
    Receive,
)
from clawrl.weights.sources import WeightSource
from clawrl.weights.transaction import Publishing

CONFIG = PublishConfig(prepare_timeout_s=0.3, transfer_timeout_s=0.2, go_back_timeout_s=0.1, commit_timeout_s=0.3)


def manifest(version: int, *, adapters: bool = False) -> WeightManifest:
    shape = AdapterShape(rank=4, alpha=8.0, targets=("q_proj",))
    return WeightManifest(
        version=version,
        kind=WeightKind.ADAPTER if adapters else WeightKind.FULL,
        tensors=(),
        buckets=(),
        digest=f"d{version}",
        addition=Addition(shape=shape, base_version=0, base_digest="d0") if adapters else None,
    )


class FakeReplica:
    """Polls like a real one. ``fails`` names commands that it refuses, ``mute`` those that it never answers."""

    def __init__(self, name: str, members: Members, ranks: int | None = None) -> None:
        self.name, self.members = name, members
        self.stats = {} if ranks is None else {"ranks": ranks}
        self.version = 0
        self.prepared: int | None = None
        self.staged: int | None = None
        self.sources: list[WeightSource] = []
        self.fails: set[type] = set()
        self.mute: set[type] = set()
        self.seen: list[type] = []
        # How long it copies the snapshot, once it is asked to have it.
        self.copies_for_s = 0.0
        self.copied_at: float | None = None
        self.task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while True:
            order = await self.members.poll(self.name, self.version, self.stats, timeout_s=0.1)
            if order is None:
                continue
            self.seen.append(type(order.command))
            if type(order.command) in self.mute:
                await asyncio.sleep(3600)
            outcome = (
                Outcome(ok=False, detail=f"{self.name} refused")
                if type(order.command) in self.fails
                else self._do(order.command)
            )
            self.members.report(self.name, order.number, self.version, outcome)

    def _do(self, command: Command) -> Outcome:
        match command:
            case Fetch(snapshot=snapshot):
                assert snapshot == "/snap"
                now = asyncio.get_running_loop().time()
                self.copied_at = self.copied_at or now + self.copies_for_s
                return Outcome(ok=True, stats={COPYING: now < self.copied_at})
            case Prepare(manifest=offered, snapshot=snapshot):
                assert self.copied_at is not None
                assert snapshot == "/snap"
                self.prepared = offered.version
            case Receive(source=source):
                self.sources.append(source)
                self.staged = self.prepared
            case Commit(version=version):
                assert self.staged == version
                self.version = version
                return Outcome(ok=True, stats={"hold_ms": 1.0})
            case Abort():
                self.prepared = self.staged = None
            case CatchUp(version=current):
                self.version = current.version
        return Outcome(ok=True)


class World:
    def __init__(self, config: PublishConfig = CONFIG) -> None:
        self.members = Members(expires_s=5.0)
        self.decided: list[PolicyVersion] = []
        self.publishing = Publishing(self.members, config, self._decide)

    async def _decide(self, version: PolicyVersion) -> None:
        self.decided.append(version)

    async def replicas(self, count: int) -> list[FakeReplica]:
        made = [FakeReplica(f"r{i}", self.members) for i in range(count)]
        await asyncio.sleep(0.02)
        return made

    async def publish(self, version: int) -> PolicyVersion:
        meeting = await self.publishing.begin(manifest(version), version, "/snap", "127.0.0.1", 1)
        return await self.publishing.finish(meeting.name)


def played(story: Callable[[World], Coroutine[Any, Any, None]], config: PublishConfig = CONFIG) -> None:
    async def run() -> None:
        await story(World(config))

    asyncio.run(run())
