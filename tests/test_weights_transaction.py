"""A publish is all or nothing, whatever dies in the middle. Replicas here are coroutines, transfers are not real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from clawrl.messages import AdapterShape, Addition, PolicyVersion, WeightKind, WeightManifest
from clawrl.weights import transaction
from clawrl.weights.config import PublishConfig
from clawrl.weights.members import (
    COPYING,
    Abort,
    Admit,
    CatchUp,
    Command,
    Commit,
    Fetch,
    Members,
    Outcome,
    Prepare,
    Receive,
)
from clawrl.weights.sources import Broadcast, OnDisk, WeightSource
from clawrl.weights.transaction import PublishFailed, Publishing

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


def test_all_replicas_commit_and_the_decision_is_on_disk_before_the_first_commit() -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(3)
        decided_at_commit: list[int] = []
        for replica in replicas:
            original = replica._do
            replica._do = lambda command, original=original: (  # type: ignore[method-assign]
                decided_at_commit.append(len(world.decided)) if isinstance(command, Commit) else None,
                original(command),
            )[1]
        version = await world.publish(1)
        assert [replica.version for replica in replicas] == [1, 1, 1]
        assert decided_at_commit == [1, 1, 1]
        assert version.stats["committed"] == 3 and version.stats["hold_ms"] == 1.0

    played(story)


def test_without_replicas_a_version_is_decided_for_those_who_come_later() -> None:
    async def story(world: World) -> None:
        meeting = await world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1)
        assert meeting.world == 1
        assert (await world.publishing.finish(meeting.name)).version == 1

    played(story)


@pytest.mark.parametrize("kind", ["fails", "mute"])
def test_a_replica_that_does_not_prepare_is_left_out(kind: str) -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(3)
        getattr(replicas[1], kind).add(Prepare)
        meeting = await world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1)
        assert meeting.world == 3
        await world.publishing.finish(meeting.name)
        assert [replica.version for replica in replicas] == [1, 0, 1]

    played(story)


@pytest.mark.parametrize("kind", ["fails", "mute"])
def test_a_transfer_that_reaches_nobody_is_no_publish_and_the_next_one_works(kind: str) -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        for replica in replicas:
            getattr(replica, kind).add(Receive)
        with pytest.raises(PublishFailed, match=r"r0.*r1"):
            await world.publish(1)
        assert world.decided == [] and [replica.version for replica in replicas] == [0, 0]
        assert not world.publishing.busy
        for replica in replicas:
            replica.fails.clear()
            if kind == "mute":
                replica.task.cancel()
        if kind == "mute":
            replicas = await world.replicas(2)
        await asyncio.sleep(0.15)
        await world.publish(2)
        assert [replica.version for replica in replicas] == [2, 2] and [v.version for v in world.decided] == [2]

    played(story)


@pytest.mark.parametrize("kind", ["fails", "mute"])
def test_those_who_received_everything_commit_and_the_others_catch_up(kind: str) -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(3)
        getattr(replicas[1], kind).add(Receive)
        version = await world.publish(1)
        assert [v.version for v in world.decided] == [1]
        assert version.stats["committed"] == version.stats["replicas"] == 2
        assert [replica.version for replica in replicas] == [1, 0, 1]
        assert Commit not in replicas[1].seen, "it has nothing to commit"
        if kind == "mute":
            replicas[1].task.cancel()
            replicas[1] = FakeReplica("r1", world.members)
        await asyncio.sleep(0.15)
        await world.publishing.catch_up(version)
        await asyncio.sleep(0.05)
        assert [replica.version for replica in replicas] == [1, 1, 1]
        assert [replica.seen.count(CatchUp) for replica in replicas] == [0, 1, 0]

    played(story)


def test_an_abort_reaches_those_who_had_staged() -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        meeting = await world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1)
        await asyncio.sleep(0.05)
        assert [replica.staged for replica in replicas] == [1, 1]
        await world.publishing.abort(meeting.name, "the sender gave up")
        await asyncio.sleep(0.05)
        assert [replica.staged for replica in replicas] == [None, None] and not world.publishing.busy
        assert world.decided == []

    played(story)


def test_a_replica_takes_as_many_ranks_as_its_engine_has() -> None:
    async def story(world: World) -> None:
        replicas = [FakeReplica(f"r{i}", world.members, ranks) for i, ranks in enumerate((None, 2, 1, 4))]
        await asyncio.sleep(0.02)
        replicas[2].fails.add(Prepare)
        meeting = await world.publishing.begin(manifest(1), 1, "/snap", "10.0.0.1", 77)
        assert (meeting.world, meeting.host, meeting.port, meeting.transport) == (1 + 1 + 2 + 4, "10.0.0.1", 77, "gloo")
        await world.publishing.finish(meeting.name)
        assert [replica.sources for replica in replicas] == [
            [Broadcast(meeting=meeting, rank=1)],
            [Broadcast(meeting=meeting, rank=2)],
            [],
            [Broadcast(meeting=meeting, rank=4)],
        ]

    played(story)


def test_with_versions_from_disk_the_trainer_meets_nobody_and_each_replica_is_told_the_snapshot() -> None:
    async def story(world: World) -> None:
        replicas = [FakeReplica(f"r{i}", world.members, 2) for i in range(2)]
        await asyncio.sleep(0.02)
        meeting = await world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1)
        assert meeting.world == 1 and meeting.transport == "disk"
        await world.publishing.finish(meeting.name)
        assert [replica.sources for replica in replicas] == [[OnDisk(folder="/snap")]] * 2
        assert [replica.version for replica in replicas] == [1, 1]

    played(story, CONFIG.model_copy(update={"transport": "disk"}))


@pytest.mark.parametrize("kind", ["fails", "mute"])
def test_a_replica_that_misses_the_commit_catches_up_from_the_snapshot(kind: str) -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        getattr(replicas[0], kind).add(Commit)
        version = await world.publish(1)
        assert version.stats["committed"] == 1 and replicas[1].version == 1
        if kind == "mute":
            replicas[0].task.cancel()
            replicas[0] = FakeReplica("r0", world.members)
        await asyncio.sleep(0.15)
        await world.publishing.catch_up(version)
        await asyncio.sleep(0.05)
        assert replicas[0].version == 1

    played(story)


def test_nobody_is_told_to_catch_up_while_a_publish_is_open() -> None:
    async def story(world: World) -> None:
        (replica,) = await world.replicas(1)
        meeting = await world.publishing.begin(manifest(2), 2, "/snap", "127.0.0.1", 1)
        old = PolicyVersion(version=1, step=1, snapshot="/old", digest="d", published_at=0.0)
        await asyncio.sleep(0.15)
        await world.publishing.catch_up(old)
        await asyncio.sleep(0.15)
        assert Receive in replica.seen and CatchUp not in replica.seen
        await world.publishing.finish(meeting.name)

    played(story)


def test_a_newer_publish_ends_an_open_one_whose_trainer_died() -> None:
    async def story(world: World) -> None:
        (replica,) = await world.replicas(1)
        first = await world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1)
        await asyncio.sleep(0.05)
        await world.publish(2)
        with pytest.raises(PublishFailed, match="not open"):
            await world.publishing.finish(first.name)
        assert replica.version == 2 and [v.version for v in world.decided] == [2]

    played(story)


def test_a_coordinator_that_restarted_knows_no_open_publish() -> None:
    async def story(world: World) -> None:
        with pytest.raises(PublishFailed, match="restarted"):
            await world.publishing.finish("a name from before")
        await world.publishing.abort("a name from before", "why not")

    played(story)


def test_a_replica_that_goes_silent_is_forgotten_and_comes_back_by_polling() -> None:
    async def story(world: World) -> None:
        now = [0.0]
        members = Members(expires_s=5.0, clock=lambda: now[0])
        assert await members.poll("r", 0, {"running": 1}, timeout_s=0.01) is None
        assert members.alive() == ["r"] and members.describe() == [{"replica": "r", "version": 0, "running": 1}]
        now[0] = 6.0
        assert members.alive() == []
        assert not (await members.call("r", Abort(version=1), timeout_s=0.1)).ok
        await members.poll("r", 0, {}, timeout_s=0.01)
        assert members.alive() == ["r"]

    played(story)


def test_a_publish_whose_trainer_died_does_not_keep_late_replicas_old() -> None:
    async def story(world: World) -> None:
        (replica,) = await world.replicas(1)
        await world.publishing.begin(manifest(2), 2, "/snap", "127.0.0.1", 1)
        current = PolicyVersion(version=1, step=1, snapshot="/s", digest="d", published_at=0.0)
        await world.publishing.catch_up(current)
        assert world.publishing.busy
        await world.publishing.abort_open("a new training run begins")
        await asyncio.sleep(0.15)
        await world.publishing.catch_up(current)
        await asyncio.sleep(0.05)
        assert replica.version == 1

    played(story)


def test_a_begin_that_was_overtaken_while_it_prepared_sends_nobody_to_a_dead_sender() -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        replicas[0].mute.add(Prepare)
        first = asyncio.create_task(world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1))
        await asyncio.sleep(0.05)
        replicas[0].mute.clear()
        second = await world.publishing.begin(manifest(2), 2, "/snap", "127.0.0.1", 1)
        with pytest.raises(PublishFailed, match="newer"):
            await first
        await world.publishing.finish(second.name)
        assert replicas[1].seen.count(Receive) == 1 and replicas[1].version == 2

    played(story)


def test_a_replica_that_says_goodbye_answers_for_what_it_was_asked() -> None:
    async def story(world: World) -> None:
        (replica,) = await world.replicas(1)
        replica.mute.add(Prepare)
        asked = asyncio.create_task(
            world.members.call("r0", Prepare(manifest=manifest(1), snapshot="/snap"), timeout_s=60)
        )
        await asyncio.sleep(0.05)
        world.members.leave("r0")
        outcome = await asyncio.wait_for(asked, 1.0)
        assert not outcome.ok and "has left" in outcome.detail

    played(story)


def test_a_version_that_no_replica_can_take_is_not_published() -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        for replica in replicas:
            replica.fails.add(Prepare)
        with pytest.raises(PublishFailed, match="no replica can take it: r0 refused; r1 refused"):
            await world.publish(1)
        assert world.decided == [] and not world.publishing.busy
        for replica in replicas:
            replica.fails.clear()
        await asyncio.sleep(0.15)
        assert (await world.publish(2)).version == 2

    played(story)


def test_replicas_are_not_held_for_a_trainer_that_sent_everything_and_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_WORD_S", 0.05)

    async def story(world: World) -> None:
        (replica,) = await world.replicas(1)
        await world.publishing.begin(manifest(1), 1, "/snap", "127.0.0.1", 1)
        current = PolicyVersion(version=0, step=0, snapshot="/s", digest="d0", published_at=0.0)
        for _ in range(6):
            await asyncio.sleep(0.05)
            await world.publishing.catch_up(current)
        await asyncio.sleep(0.05)
        assert Abort in replica.seen and replica.staged is None and not world.publishing.busy

    played(story)


def test_a_replica_that_is_waited_for_does_not_vanish_from_the_table() -> None:
    async def run() -> None:
        now = [0.0]
        members = Members(expires_s=5.0, clock=lambda: now[0])
        replica = FakeReplica("r0", members)
        replica.mute.add(Prepare)
        await asyncio.sleep(0.02)
        asked = asyncio.create_task(members.call("r0", Prepare(manifest=manifest(1), snapshot="/s"), timeout_s=0.3))
        await asyncio.sleep(0.05)
        now[0] = 1000.0
        assert members.alive() == ["r0"]
        await asked
        assert members.alive() == []

    asyncio.run(run())


def test_adapters_go_to_each_replica_once_however_many_ranks_it_has_and_never_by_nccl() -> None:
    async def story(world: World) -> None:
        replicas = [FakeReplica("r0", world.members, ranks=4), FakeReplica("r1", world.members, ranks=2)]
        await asyncio.sleep(0.02)
        for number, adapters in enumerate((True, False), start=1):
            offer = manifest(number, adapters=adapters)
            meeting = await world.publishing.begin(offer, number, "/snap", "127.0.0.1", 1)
            assert (meeting.world, meeting.transport) == ((3, "gloo") if adapters else (7, "nccl"))
            await world.publishing.finish(meeting.name)
        ranks = [[source.rank for source in replica.sources if isinstance(source, Broadcast)] for replica in replicas]
        assert ranks == [[1, 1], [2, 5]]

    played(story, PublishConfig(**{**CONFIG.model_dump(), "transport": "nccl"}))


def test_whole_weights_are_an_addition_to_nothing_and_adapters_to_something() -> None:
    for kind, addition in ((WeightKind.FULL, manifest(1, adapters=True).addition), (WeightKind.ADAPTER, None)):
        with pytest.raises(ValueError, match="say what they are an addition to"):
            WeightManifest(version=1, kind=kind, tensors=(), buckets=(), digest="", addition=addition)


def test_a_replica_that_copies_the_snapshot_is_waited_for_longer_than_for_an_answer() -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        replicas[0].copies_for_s = 2 * CONFIG.prepare_timeout_s
        version = await world.publish(1)
        assert [replica.version for replica in replicas] == [1, 1] and version.stats["committed"] == 2

    played(story)


def test_one_that_copies_for_too_long_is_left_out_by_the_name_of_the_limit_and_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        replicas[0].copies_for_s = 60.0
        version = await world.publish(1)
        assert [replica.version for replica in replicas] == [0, 1] and version.stats["replicas"] == 1
        assert Prepare not in replicas[0].seen
        assert (
            "r0 has not copied the snapshot of version 1 within 0.2 s (publish.fetch_timeout_s): raise it"
            in caplog.text
        )
        replicas[1].copies_for_s, replicas[1].copied_at = 60.0, None
        with pytest.raises(
            PublishFailed, match=r"no replica can take it: .*r1 has not copied .*state_dir on a file sys"
        ):
            await world.publish(2)

    played(story, CONFIG.model_copy(update={"fetch_timeout_s": 0.2}))


def test_a_dead_replica_costs_an_answers_time_and_not_a_copys() -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(2)
        replicas[0].mute.add(Fetch)
        async with asyncio.timeout(3 * CONFIG.prepare_timeout_s):
            version = await world.publish(1)
        assert version.stats["replicas"] == 1

    played(story)


@pytest.mark.parametrize(("transport", "by_all"), [("gloo", False), ("disk", True)])
def test_everybody_needs_the_snapshot_where_it_is_what_is_read(transport: Any, by_all: bool) -> None:
    async def story(world: World) -> None:
        replicas = await world.replicas(1)
        asked: list[Command] = []
        do = replicas[0]._do
        replicas[0]._do = lambda command: (asked.append(command), do(command))[1]  # type: ignore[method-assign]
        await world.publish(1)
        assert asked[0] == Fetch(version=1, snapshot="/snap", read_by_all=by_all)

    played(story, CONFIG.model_copy(update={"transport": transport}))


def test_who_comes_while_others_copy_is_in_the_publish_and_serves_at_once() -> None:
    async def story(world: World) -> None:
        (copies,) = await world.replicas(1)
        copies.copies_for_s = 0.6
        publish = asyncio.create_task(world.publish(1))
        await asyncio.sleep(0.05)
        comes = FakeReplica("late", world.members)
        async with asyncio.timeout(0.5):
            while Admit not in comes.seen:
                await world.publishing.catch_up(None)
                await asyncio.sleep(0.02)
        assert not publish.done()
        assert (await publish).stats["committed"] == 2 and [copies.version, comes.version] == [1, 1]

    played(story)
