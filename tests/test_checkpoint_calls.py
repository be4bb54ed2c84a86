"""What the coordinator answers about checkpoints, and what it shows of those that failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clawrl.ledger import ForeignCheckpoint
from clawrl.messages import Lease, LedgerPosition
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
