"""A publish is all or nothing, whatever its replicas do."""

from __future__ import annotations

import asyncio

import pytest

from clawrl.messages import PolicyVersion
from clawrl.weights.members import CatchUp, Commit, Prepare, Receive
from clawrl.weights.transaction import PublishFailed
from tests.publishing_kit import FakeReplica, World, manifest, played


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
