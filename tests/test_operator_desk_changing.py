"""What an operator changes through the coordinator: rollbacks and publishes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from clawrl.actors.lease_desk import Rewind
from clawrl.messages import Lease, WeightKind, WeightManifest
from clawrl.weights import members as weights
from clawrl.weights.transaction import PublishFailed
from tests.office import Office, talk
from tests.operator_kit import kept_version, look, refused, run, until, with_versions
from tests.test_coordinator_guards import ALARMS, SOUND, serve_version


def test_an_operator_rolls_back_with_the_guard_off_while_paused_repeatedly_and_to_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path, guards__alarms={"enabled": False}).open()
        await with_versions(coordinator, tmp_path, 5)
        await coordinator.pause("operator", "looking")
        first = await look(coordinator, "roll_back", 3)
        assert first == {"version": 6, "rolled_back_to": 3, "rolled_back_from": 5, "step": 3}
        assert await look(coordinator, "roll_back", 3) == first, "asked again it is one rollback"
        order = await coordinator.lease("run", 6, 0.05)
        assert isinstance(order, Rewind) and order.version.version == 6, "the trainer hears of it while paused"
        assert (await look(coordinator, "roll_back", 0))["version"] == 7
        # The trainer had begun to go back to 6: that is not the last word.
        await coordinator.rewound("run", 6)
        order = await coordinator.lease("run", 6, 0.05)
        assert isinstance(order, Rewind) and order.version.version == 7
        assert order.version.snapshot == kept_version(0, tmp_path).snapshot
        await coordinator.rewound("run", 7)
        assert await coordinator.lease("run", 6, 0.05) is None, "paused: nothing more to hear"
        assert (await coordinator.status())["paused"], "a rollback lifts no pause"
        current = await coordinator.current_version()
        assert current is not None and current.version == 7
        assert current.snapshot in await coordinator.snapshots_in_use()
        assert await coordinator.next_version() == 8, "versions never go back"
        await coordinator.close()

    run(test)


def test_rolled_back_again_after_the_trainer_moved_on_it_is_another_rollback(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 3)
        assert (await look(coordinator, "roll_back", 1))["version"] == 4
        await coordinator.rewound("run", 4)
        assert (await look(coordinator, "roll_back", 1))["version"] == 4
        await coordinator.checkpointed("run", 4)
        assert (await look(coordinator, "roll_back", 1))["version"] == 5, "a step was taken from these weights"
        await coordinator.close()

    run(test)


def test_a_version_that_is_unknown_or_pruned_is_refused_with_those_that_are_kept(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 3)
        import shutil

        shutil.rmtree(kept_version(2, tmp_path).snapshot)
        manifest = WeightManifest(version=4, kind=WeightKind.FULL, tensors=(), buckets=(), digest="d")
        meeting = await coordinator.begin_publish("run", manifest, 4, "/snapshots/4", "127.0.0.1", 1)
        for number in (2, 99):
            error = await refused(coordinator, "roll_back", number)
            assert (error.status, error.code) == (404, "version_not_kept")
            assert f"Version {number}" in error.message and "Kept are: 0, 1, 3" in error.message
        current = await coordinator.current_version()
        assert current is not None and current.version == 3, "a refusal changes nothing"
        assert (await coordinator.finish_publish(meeting.name)).version == 4, "nor does it disturb a publish"
        await coordinator.close()

    run(test)


@pytest.mark.parametrize("when", ["open", "committing"])
def test_a_rollback_during_a_publish_has_the_last_word(tmp_path: Path, when: str) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 2)
        committing, rolled_back = asyncio.Event(), asyncio.Event()

        async def replica() -> None:
            """Does what it is told; its commit takes until the rollback is through."""
            held = 2
            while True:
                order = await coordinator.poll("r", held, {"serving": True}, 0.2)
                if order is None:
                    continue
                if isinstance(order.command, weights.Commit):
                    committing.set()
                    await rolled_back.wait()
                    held = order.command.version
                if isinstance(order.command, weights.CatchUp):
                    held = order.command.version.version
                stats = {"hold_ms": 1.0} if isinstance(order.command, weights.Commit) else {}
                await coordinator.report("r", order.number, held, weights.Outcome(ok=True, stats=stats))

        living = asyncio.create_task(replica())
        await until(coordinator, lambda s: len(s["replicas"]) == 1)
        number = await coordinator.next_version()
        new = kept_version(number, tmp_path)
        manifest = WeightManifest(version=number, kind=WeightKind.FULL, tensors=(), buckets=(), digest=new.digest)
        meeting = await coordinator.begin_publish("run", manifest, 3, new.snapshot, "127.0.0.1", 1)
        if when == "open":
            again = await look(coordinator, "roll_back", 1)
            rolled_back.set()
            with pytest.raises(PublishFailed):
                await coordinator.finish_publish(meeting.name)
        else:
            finishing = asyncio.create_task(coordinator.finish_publish(meeting.name))
            await committing.wait()
            again = await look(coordinator, "roll_back", 1)
            rolled_back.set()
            assert (await finishing).version == number
        assert again["version"] > number
        with pytest.raises(PublishFailed, match="rewind"):
            await coordinator.next_version()
        began = time.monotonic()
        await until(coordinator, lambda s: s["replicas"] and s["replicas"][0]["version"] == again["version"])
        assert time.monotonic() - began < 4.0
        current = await coordinator.current_version()
        assert current is not None and current.version == again["version"]
        living.cancel()
        await coordinator.close()

    run(test)


def test_after_an_operators_rollback_the_guard_still_watches_and_rolls_back_itself(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", kept_version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        await coordinator._decide(kept_version(1, tmp_path))
        await serve_version(coordinator, 1, text=SOUND)
        await until(coordinator, lambda s: s["guards"]["good_version"] == 1)
        await coordinator._decide(kept_version(2, tmp_path))
        assert (await look(coordinator, "roll_back", 2))["version"] == 3
        await serve_version(coordinator, 3, text="no")
        status = await until(coordinator, lambda s: s["version"] == 4)
        assert status["paused"] and status["versions"][0]["stats"]["rolled_back_to"] == 1
        assert status["versions"][0]["stats"]["by"] == "guard"
        await coordinator.close()

    run(test)


def test_publish_says_that_nothing_is_new_and_ends_the_rest_of_a_trainer_that_has_something(tmp_path: Path) -> None:
    async def test() -> None:
        coordinator = Office(tmp_path).open()
        await with_versions(coordinator, tmp_path, 0)
        answer = await look(coordinator, "publish")
        assert (answer["outcome"], answer["version"], answer["newest_step"]) == ("nothing_new", 0, None)
        await talk(coordinator, 3)
        lease = await coordinator.lease("run", 1, 5.0)
        assert isinstance(lease, Lease) and await coordinator.confirm(lease.lease_id, "run")
        assert await coordinator.applied(lease.lease_id, "run", {"changed": True})
        began = time.monotonic()
        resting = asyncio.create_task(coordinator.rest(20.0))
        await asyncio.sleep(0.01)
        answer = await look(coordinator, "publish")
        assert (answer["outcome"], answer["step"], answer["newest_step"]) == ("asked", 0, 1)
        assert answer["trainer"] == "running"
        await resting
        assert time.monotonic() - began < 10.0
        await coordinator._decide(kept_version(1, tmp_path))
        assert (await look(coordinator, "publish"))["outcome"] == "nothing_new"
        await look(coordinator, "roll_back", 0)
        error = await refused(coordinator, "publish")
        assert error.status == 409 and "rewind" in error.message
        await coordinator.rewound("run", 2)
        assert (await look(coordinator, "publish"))["outcome"] == "nothing_new", "step 1 was taken back"
        await coordinator.close()

    run(test)
