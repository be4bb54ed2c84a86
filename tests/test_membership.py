"""Replicas come, catch up, go and die while versions are published: the real control and the real transaction.

Only the engine and the clock are made up, and Ray between the two: a call of the coordinator's is a call of a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clawrl.actors import replica_control
from clawrl.actors.calls import Coordinator
from clawrl.actors.replica_control import ReplicaControl
from clawrl.engine.errors import EngineError
from clawrl.engine.protocol import Engine, SwapReport
from clawrl.messages import PolicyVersion, WeightKind, WeightManifest
from clawrl.weights import transaction
from clawrl.weights.config import PublishConfig
from clawrl.weights.fetch import Library
from clawrl.weights.members import Members
from clawrl.weights.transaction import PublishFailed, Publishing
from tests.idle_clock import LOOP_TIME, run_on_idle_clock

CONFIG = PublishConfig(prepare_timeout_s=1, transfer_timeout_s=1, go_back_timeout_s=1, commit_timeout_s=1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_control, "_POLL_S", 0.1)
    monkeypatch.setattr(replica_control, "_LOOK_S", 0.01)


class MadeUpEngine:
    """Holds versions as numbers. ``gate`` keeps it in ``receive``; ``says`` tells the calls in their order."""

    def __init__(self) -> None:
        self.version = 0
        self.staged: int | None = None
        self.broken = False
        self.says: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.capabilities = SimpleNamespace(ranks=1, reads_snapshots=False)

    def stats(self) -> dict[str, Any]:
        return {}

    def health(self) -> None:
        if self.broken:
            raise EngineError("broken")

    async def prepare(self, manifest: WeightManifest, snapshot: Path) -> None:
        self.says.append(f"prepare {manifest.version}")
        self.staged = manifest.version

    async def receive(self, source: Any) -> None:
        self.says.append("receive")
        await self.gate.wait()

    async def commit(self, version: int) -> SwapReport:
        assert self.staged == version
        self.version = version
        return SwapReport(version=version, hold_s=0.001, requests_carried=0)

    async def abort(self) -> None:
        self.says.append("abort")
        self.staged = None


class Replica:
    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self.engine, self.drains = name, MadeUpEngine(), False
        self.control = ReplicaControl(
            name,
            cast(Engine, self.engine),
            cast(Coordinator, cluster),
            dict,
            library=cast(Library, _EverythingIsHere()),
            draining=lambda: self.drains,
        )
        self.joined = asyncio.create_task(self.control.join(timeout_s=1))


class _EverythingIsHere:
    async def local(self, folder: Path, version: int, *, held: int) -> Path:
        return folder

    async def close(self) -> None:
        pass


class Cluster:
    """The coordinator's part in publishing, and its look at late replicas that comes every so often."""

    def __init__(self) -> None:
        self.members = Members(expires_s=5.0, clock=asyncio.get_running_loop().time)
        self.publishing = Publishing(self.members, CONFIG, self._decide)
        self.current: PolicyVersion | None = None
        self.after_current: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self.helping = asyncio.create_task(self._help())
        self.away: asyncio.Event | None = None
        """While the coordinator is away calls are repeated, as those of `clawrl.actors.calls` are."""

    async def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        while True:
            answer = await self._answer(method, *arguments)
            if self.away is None or (method == "leave" and not self.away.is_set()):
                return answer
            if self.away.is_set():
                self.away = None
            else:
                await self.away.wait()

    async def _answer(self, method: str, *arguments: Any) -> Any:
        if method == "current_version":
            current = self.current
            if self.after_current is not None:
                await self.after_current()
            return current
        if method == "poll":
            replica, version, stats, wait_s = arguments
            return await self.members.poll(replica, version, stats, timeout_s=wait_s)
        return getattr(self.members, method)(*arguments)

    async def join(self, name: str) -> Replica:
        replica = Replica(name, self)
        async with asyncio.timeout(5):
            await replica.joined
        return replica

    async def begin(self, version: int) -> str:
        manifest = WeightManifest(version=version, kind=WeightKind.FULL, tensors=(), buckets=(), digest=f"d{version}")
        return (await self.publishing.begin(manifest, version, f"/v{version}", "127.0.0.1", 1)).name

    async def publish(self, version: int) -> PolicyVersion:
        return await self.publishing.finish(await self.begin(version))

    async def _decide(self, version: PolicyVersion) -> None:
        self.current = version

    async def _help(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            await self.publishing.catch_up(self.current)


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Cluster], Coroutine[Any, Any, None]]], None]:
    async def caught_up(engine: MadeUpEngine, version: PolicyVersion, library: Library) -> None:
        engine.says.append(f"catch up {version.version}")
        await asyncio.sleep(0.02)
        engine.version = version.version

    monkeypatch.setattr(replica_control, "catch_up", caught_up)
    monkeypatch.setattr(transaction, "time", LOOP_TIME)

    async def run(told: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        await told(Cluster())

    return lambda told: run_on_idle_clock(run(told))


def test_a_replica_serves_at_once_where_nothing_was_published_yet(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        replica = await cluster.join("a")
        assert replica.engine.version == 0 and cluster.members.floor() == 0

    story(told)


def test_a_replica_that_comes_later_holds_the_current_version_before_it_serves(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        await cluster.publish(3)
        replica = await cluster.join("a")
        assert replica.engine.version == 3 and replica.engine.says == ["catch up 3"]
        assert cluster.members.floor() == 3

    story(told)


def test_a_version_that_is_published_between_catching_up_and_the_first_poll_is_not_missed(story: Any) -> None:
    """The race of scaling up: what the newcomer loaded is old by the time it is a member."""

    async def told(cluster: Cluster) -> None:
        await cluster.publish(1)

        async def a_newer_one() -> None:
            await cluster.publish(2)

        cluster.after_current = a_newer_one
        replica = await cluster.join("late")
        assert replica.engine.says[0] == "catch up 1"
        assert replica.engine.version == 2, "it must not serve version 1 when 2 is current"

    story(told)


def test_a_replica_that_comes_in_the_middle_of_a_publish_waits_for_its_end(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        first = await cluster.join("first")
        first.engine.gate.clear()
        publish = await cluster.begin(1)
        late = Replica("late", cluster)
        await asyncio.sleep(0.1)
        assert not late.joined.done(), "admitted now, it would serve version 0 beside version 1"
        first.engine.gate.set()
        await cluster.publishing.finish(publish)
        await asyncio.wait_for(late.joined, 5)
        assert late.engine.version == first.engine.version == 1 and cluster.members.floor() == 1

    story(told)


def test_a_newcomer_whose_engine_breaks_before_it_is_admitted_does_not_wait_for_ever(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        first = await cluster.join("first")
        first.engine.gate.clear()
        await cluster.begin(1)
        late = Replica("late", cluster)
        await asyncio.sleep(0.1)
        late.engine.broken = True
        with pytest.raises(EngineError, match="broken"):
            await asyncio.wait_for(late.joined, 5)

    story(told)


def test_a_newcomer_is_in_the_next_publish_and_serves_when_that_has_reached_it(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        cluster.helping.cancel()
        late = Replica("late", cluster)
        await asyncio.sleep(0.05)
        version = await cluster.publish(1)
        assert version.stats["committed"] == 1 and not late.joined.done()
        await cluster.publishing.catch_up(version)
        await asyncio.wait_for(late.joined, 5)
        assert late.engine.says == ["prepare 1", "receive"], "no snapshot was needed"

    story(told)


def test_what_the_caller_read_before_a_newer_version_was_decided_admits_nobody(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        cluster.helping.cancel()
        old = await cluster.publish(1)
        await cluster.publish(2)
        assert await cluster.members.poll("late", 1, {}, timeout_s=0.01) is None
        await cluster.publishing.catch_up(old)
        await asyncio.sleep(0.02)
        order = await cluster.members.poll("late", 1, {}, timeout_s=0.1)
        assert order is None or type(order.command).__name__ == "CatchUp"

    story(told)


def test_a_draining_replica_is_not_waited_for_and_keeps_the_version_that_it_holds(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        stays, goes = await cluster.join("stays"), await cluster.join("goes")
        await cluster.publish(1)
        goes.drains = True
        await asyncio.sleep(0.1)
        version = await cluster.publish(2)
        assert (version.stats["replicas"], version.stats["committed"]) == (1, 1)
        assert stays.engine.version == 2 and goes.engine.version == 1, (
            "its answers end under the version that began them"
        )
        assert cluster.members.floor() == 2
        goes.control.check()

    story(told)


def test_a_replica_that_begins_to_drain_in_the_middle_of_a_publish_does_not_delay_it(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        stays, goes = await cluster.join("stays"), await cluster.join("goes")
        goes.engine.gate.clear()
        publish = await cluster.begin(1)
        finish = asyncio.create_task(cluster.publishing.finish(publish))
        await asyncio.sleep(0.02)
        goes.drains = True
        version = await asyncio.wait_for(finish, 0.5)
        assert version.stats["committed"] == 1 and stays.engine.version == 1
        goes.engine.gate.set()
        await asyncio.sleep(0.05)
        assert goes.engine.says[-1] == "abort" and goes.engine.staged is None and goes.engine.version == 0

    story(told)


def test_a_replica_that_is_killed_is_forgotten_and_its_successor_starts_over(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        stays, dies = await cluster.join("stays"), await cluster.join("dies")
        assert dies.control._task is not None and dies.control._watch is not None
        dies.control._task.cancel()
        dies.control._watch.cancel()
        version = await cluster.publish(1)
        assert version.stats["committed"] == 1 and stays.engine.version == 1
        heir = await cluster.join("heir")
        assert heir.engine.version == 1

    story(told)


def test_the_last_replica_that_leaves_in_a_publish_costs_one_try_and_the_next_has_none_to_wait_for(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        only = await cluster.join("only")
        only.engine.gate.clear()
        publish = await cluster.begin(1)
        await asyncio.sleep(0.02)
        only.drains = True
        with pytest.raises(PublishFailed, match="has left"):
            await cluster.publishing.finish(publish)
        assert (await cluster.publish(2)).stats["replicas"] == 0
        only.engine.gate.set()

    story(told)


def test_leaving_ends_the_control_and_the_coordinator_knows(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        replica = await cluster.join("a")
        await replica.control.leave()
        assert cluster.members.alive() == []
        replica.control.check()

    story(told)


def test_a_replica_that_left_does_not_sign_on_with_the_next_coordinator(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        goes = await cluster.join("goes")
        # The coordinator dies with the poll that it holds; the caller repeats that until another one answers.
        cluster.away = asyncio.Event()
        await asyncio.sleep(0.15)
        goes.drains = True
        await asyncio.sleep(0.05)
        assert cluster.members.alive() == []
        heir = cluster.members = Members(expires_s=5.0, clock=asyncio.get_running_loop().time)
        cluster.away.set()
        await asyncio.sleep(0.3)
        assert heir.alive() == [] and goes.control._task is not None and goes.control._task.done()
        goes.control.check()

    story(told)


def test_a_poll_that_comes_after_the_goodbye_does_not_bring_a_replica_back(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        goes = await cluster.join("goes")
        goes.drains = True
        await asyncio.sleep(0.05)
        assert await cluster.members.poll("goes", 0, {"serving": True}, timeout_s=0.01) is None
        assert cluster.members.alive() == [] and (await cluster.publish(1)).stats["replicas"] == 0

    story(told)


def test_a_replica_that_copies_a_snapshot_for_long_answers_all_the_while_and_is_in_the_publish(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang on a machine that does not see the state folder: it reads the version before it takes it."""
    monkeypatch.setattr(replica_control, "_COPY_LOOK_S", 0.05)

    async def told(cluster: Cluster) -> None:
        replica = await cluster.join("far away")
        replica.engine.capabilities.reads_snapshots = True
        network = asyncio.Event()

        class Slow(_EverythingIsHere):
            async def local(self, folder: Path, version: int, *, held: int) -> Path:
                await network.wait()
                return folder

        replica.control._library = replica.control._copying._library = cast(Library, Slow())
        publish = asyncio.create_task(cluster.publish(1))
        await asyncio.sleep(1.5 * CONFIG.prepare_timeout_s)
        assert not publish.done() and replica.engine.says == []
        network.set()
        version = await asyncio.wait_for(publish, 5)
        assert version.stats["committed"] == 1 and replica.engine.says == ["prepare 1", "receive"]

    story(told)


def test_while_a_late_replica_copies_the_version_that_it_missed_a_publish_goes_on(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_control, "_COPY_LOOK_S", 0.05)

    async def told(cluster: Cluster) -> None:
        replica = await cluster.join("far away")
        network = asyncio.Event()

        class Slow(_EverythingIsHere):
            async def local(self, folder: Path, version: int, *, held: int) -> Path:
                await network.wait()
                return folder

        replica.control._library = replica.control._copying._library = cast(Library, Slow())
        cluster.current = PolicyVersion(version=1, step=1, snapshot="/v1", digest="", published_at=0.0)
        await asyncio.sleep(0.2)
        assert replica.engine.says == [] and replica.engine.version == 0
        version = await asyncio.wait_for(cluster.publish(2), 3)
        assert version.stats["committed"] == 1 and replica.engine.version == 2
        cluster.current = PolicyVersion(version=3, step=1, snapshot="/v1", digest="", published_at=0.0)
        network.set()
        async with asyncio.timeout(5):
            while replica.engine.version != 3:
                await asyncio.sleep(0.02)
        replica.control.check()

    story(told)


def test_of_those_who_left_only_the_last_thousand_are_remembered(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        for number in range(3_000):
            cluster.members.leave(f"r{number}")
        assert len(cluster.members._left) == 1_000 and "r2999" in cluster.members._left

    story(told)


def test_the_floor_is_what_every_replica_in_service_holds_and_never_falls(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        members = cluster.members
        cluster.helping.cancel()
        for name, version in (("a", 5), ("b", 7)):
            await members.poll(name, version, {"serving": True}, timeout_s=0.01)
        await members.poll("joining", 0, {"serving": False}, timeout_s=0.01)
        assert members.floor() == 5
        members.leave("a")
        assert members.floor() == 7
        await members.poll("c", 6, {"serving": True}, timeout_s=0.01)
        assert members.floor() == 7

    story(told)


def test_versions_are_told_by_number_also_where_old_weights_are_served_again(story: Any) -> None:
    async def told(cluster: Cluster) -> None:
        await cluster.publish(4)
        assert cluster.current is not None
        cluster.current = replace(cluster.current, version=9, snapshot="/v1")
        replica = await cluster.join("a")
        assert replica.engine.version == 9

    story(told)
