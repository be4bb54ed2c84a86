"""A publish whose trainer, coordinator or replicas die in the middle holds nobody up."""

from __future__ import annotations

import asyncio

import pytest

from clawrl.messages import PolicyVersion
from clawrl.weights import transaction
from clawrl.weights.members import Abort, Members, Prepare, Receive
from clawrl.weights.transaction import PublishFailed
from tests.publishing_kit import FakeReplica, World, manifest, played


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
