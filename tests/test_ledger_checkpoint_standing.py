"""Which checkpoints a ledger knows as its own: those of its history, whatever was swapped, copied or overslept."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from clawrl.ledger import ForeignCheckpoint, Ledger
from clawrl.messages import LedgerPosition
from tests.ledger_kit import open_ledger, queue, take_step


def position(ledger: Ledger, run: str, step: int) -> LedgerPosition:
    return LedgerPosition(ledger=ledger.ledger_id, run=run, step=step)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Run ``one`` has taken three steps."""
    ledger = open_ledger(tmp_path)
    ledger.restored("one", 0)
    queue(ledger, *"abcdef")
    for step in (1, 2, 3):
        take_step(ledger, "one", step, 1)
    return ledger


def test_a_ledger_keeps_its_id_and_shares_it_with_no_other(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "a")
    first = ledger.ledger_id
    ledger.close()
    assert open_ledger(tmp_path / "a").ledger_id == first != open_ledger(tmp_path / "b").ledger_id


def test_a_ledger_of_an_earlier_release_gets_its_id_when_it_is_opened(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.db") as file:
        file.execute("DROP TABLE identity")
    ledger = open_ledger(tmp_path)
    assert len(ledger.ledger_id) == 32 and ledger.ledger_id == ledger.ledger_id


def test_the_newest_checkpoint_of_its_own_history_is_taken(ledger: Ledger) -> None:
    assert ledger.resumable([]) is None
    assert ledger.resumable([position(ledger, "one", 3), position(ledger, "one", 2)]) == 0
    ledger.restored("two", 2)
    assert ledger.resumable([position(ledger, "one", 2)]) == 0
    take_step(ledger, "two", 3, 1)
    assert ledger.resumable([position(ledger, "two", 3), position(ledger, "one", 2)]) == 0


def test_what_a_replaced_run_wrote_after_its_end_is_passed_over(ledger: Ledger) -> None:
    ledger.restored("two", 2)
    overslept = position(ledger, "one", 3)
    assert ledger.resumable([overslept, position(ledger, "one", 2)]) == 1
    assert ledger.known([overslept, position(ledger, "one", 2)]) == [False, True]
    assert ledger.resumable([overslept]) is None, "the run that replaced it began from nothing, too"
    take_step(ledger, "two", 3, 1)
    take_step(ledger, "two", 4, 1)
    assert ledger.resumable([overslept, position(ledger, "two", 4)]) == 1


def test_only_the_current_run_may_complete_a_checkpoint_and_only_of_a_step_that_it_took(ledger: Ledger) -> None:
    assert ledger.checkpointing("one", 3) and not ledger.checkpointing("one", 4)
    ledger.restored("two", 2)
    assert ledger.checkpointing("two", 2) and not ledger.checkpointing("one", 3)


def test_a_checkpoint_of_another_ledger_is_refused_with_the_remedies(ledger: Ledger, tmp_path: Path) -> None:
    other = open_ledger(tmp_path / "other")
    own, foreign = position(ledger, "one", 1), position(other, "one", 2)
    with pytest.raises(ForeignCheckpoint, match=r"step 2 .*ledger\.sqlite back.*clawrl export.*move checkpoints/"):
        ledger.resumable([own, foreign])


def test_under_an_older_copy_of_the_ledger_an_older_checkpoint_is_taken_or_none(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    shutil.copytree(tmp_path, tmp_path / "copy")
    ledger = open_ledger(tmp_path)
    take_step(ledger, "one", 4, 1)
    ledger.restored("two", 4)
    ahead = [position(ledger, "two", 4), position(ledger, "one", 4)]
    copy = open_ledger(tmp_path / "copy")
    for one in ahead:
        with pytest.raises(ForeignCheckpoint, match="step 4 is newer than this ledger, which knows of steps up to 3"):
            copy.resumable([one])
    assert copy.resumable([*ahead, position(copy, "one", 3)]) == 2


def test_a_ledger_is_on_disk_before_a_checkpoint_that_builds_on_it(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name))
    ledger.checkpointing("one", 3)
    assert synced == ["ledger.db-wal", tmp_path.name]


def test_the_run_that_wrote_the_last_checkpoint_is_known_however_often_training_was_restarted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.upkeep.KEEP_HISTORY", 2)
    ledger.checkpointed("one", 3)
    for number in range(5):
        ledger.restored(f"crashed {number}", 3)
    ledger.prune()
    assert ledger.resumable([position(ledger, "one", 3)]) == 0
