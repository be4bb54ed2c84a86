"""Where the replicas of a publish take its weights from: a rank of the trainer's group, the disk, a copy of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clawrl.messages import WeightKind, WeightManifest
from clawrl.weights.config import PublishConfig
from clawrl.weights.members import Admit, Command, Fetch, Prepare
from clawrl.weights.sources import Broadcast, OnDisk
from clawrl.weights.transaction import PublishFailed
from tests.publishing_kit import CONFIG, FakeReplica, World, manifest, played


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
