"""What the coordinator answers about checkpoints, and what it shows of those that failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clawrl.actors.journal_desk import JournalDesk
from clawrl.ledger import ForeignCheckpoint
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.messages import Lease, LedgerPosition, Turn
from tests.office import Office, talk, until


def test_a_checkpoint_is_completed_only_by_the_current_run_and_chosen_on_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        ledger, index = await coordinator.resumable([])
        assert index is None
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        await coordinator.restored("one", 0)
        lease = await coordinator.lease("one", 1, 1.0)
        assert isinstance(lease, Lease)
        await coordinator.confirm(lease.lease_id, "one")
        assert not await coordinator.checkpointing("one", 1), "the step is not known to be in its weights"
        await coordinator.applied(lease.lease_id, "one", {})
        assert await coordinator.checkpointing("one", 1) and await coordinator.checkpointed("one", 1)
        await coordinator.close()
        coordinator = Office(tmp_path).open()
        assert await coordinator.resumable([LedgerPosition(ledger=ledger, run="one", step=1)]) == (ledger, 0)
        await coordinator.restored("two", 1)
        assert not await coordinator.checkpointing("one", 1)
        await coordinator.close()

    asyncio.run(run())


def test_the_status_says_why_training_cannot_start(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        with pytest.raises(ForeignCheckpoint):
            await coordinator.resumable([LedgerPosition(ledger="another", run="one", step=3)])
        state = (await coordinator.status())["trainer"]["state"]
        assert state.startswith("failed: the checkpoint of step 3") and "clawrl export" in state
        await coordinator.restored("two", 0)
        trainer = (await coordinator.status())["trainer"]
        assert (trainer["state"], trainer["step"]) == ("running", 0)
        await coordinator.close()

    asyncio.run(run())


def test_the_status_shows_a_checkpoint_that_failed_until_the_next_one_is_there(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("one", 4)
        await coordinator.checkpoint_failed("one", 4, "No space left on device")
        assert (await coordinator.status())["trainer"]["checkpoint_error"] == "step 4: No space left on device"
        await coordinator.checkpointed("one", 4)
        assert "checkpoint_error" not in (await coordinator.status())["trainer"]
        await coordinator.close()

    asyncio.run(run())


def test_a_coordinator_that_was_restarted_shows_the_run_as_it_is_and_does_not_make_up_its_state(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        assert (await coordinator.status())["trainer"]["state"] == "starting"
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        await coordinator.restored("one", 4)
        lease = await coordinator.lease("one", 5, 1.0)
        assert isinstance(lease, Lease)
        await coordinator.confirm(lease.lease_id, "one")
        await coordinator.applied(lease.lease_id, "one", {"loss": 0.25})
        before = (await coordinator.status())["trainer"]
        assert (before["state"], before["step"], before["last_metrics"]["loss"]) == ("running", 4, 0.25)
        await coordinator.close()
        coordinator = Office(tmp_path).open()
        trainer = (await coordinator.status())["trainer"]
        assert trainer == before | {"state": "not heard of since the coordinator started"}
        assert await coordinator.lease("one", 6, 0.01) is None
        assert (await coordinator.status())["trainer"] == before, "the run asks for work every few seconds"
        await coordinator.trainer_state("failed: no disk")
        assert (await coordinator.status())["trainer"]["state"] == "failed: no disk"
        await coordinator.close()

    asyncio.run(run())


def test_losses_of_replicas_that_are_gone_are_added_up_and_not_kept_one_by_one(tmp_path: Path) -> None:
    async def nothing(turn: Turn) -> None:
        raise AssertionError

    desk = JournalDesk(tmp_path, Codec(PlainVault()), nothing)
    for number in range(5_000):
        desk.note(f"fine-{number}", {"unrecorded": 0})
        desk.note(f"unlucky-{number}", {"unrecorded": 1})
        desk.note("living", {"unrecorded": 1 + number})
    assert desk.figures([])["unrecorded"] == 10_000 and len(desk._lost) == 1_000
