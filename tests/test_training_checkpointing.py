"""Checkpoints that are written while training goes on: none is lost, none is believed too early, few are kept."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clawrl.messages import LedgerPosition
from clawrl.training import checkpointing
from clawrl.training.checkpoint import read_position, read_step
from clawrl.training.checkpointing import Checkpointing
from clawrl.training.ranks import Ranks


class Desk:
    """The coordinator's side: says yes, chooses the newest, and writes down what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.refuses: set[str] = set()
        self.offered: list[LedgerPosition] = []
        self.foreign: set[int] = set()
        """Steps of checkpoints that are not of this ledger's history."""

    def ask(self, call: str, *arguments: Any) -> Any:
        if call == "resumable":
            self.offered = arguments[0]
            known = [index for index, position in enumerate(self.offered) if position.step not in self.foreign]
            return "the ledger", known[0] if known else None
        if call == "known":
            return [position.step not in self.foreign for position in arguments[0]]
        self.told.append((call, arguments[1]))
        return call not in self.refuses


def open_store(root: Path, desk: Desk, run: str = "firstrunofall", *, every: int = 1, keep: int = 2) -> Checkpointing:
    return Checkpointing(root, Ranks(), desk.ask, run, every=every, keep=keep)


def state(step: int) -> dict[str, Any]:
    return {"step": step, "optimizer": {"masters": {"w": torch.full((3,), float(step))}, "adam": [torch.ones(1)]}}


def steps_on_disk(root: Path) -> list[int | None]:
    return [read_step(folder) for folder in sorted(root.iterdir())]


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before it is set."""
    goes_on, write = threading.Event(), checkpointing.write_state

    def wait_and_write(folder: Path, what: dict[str, Any]) -> None:
        assert goes_on.wait(20)
        write(folder, what)

    monkeypatch.setattr(checkpointing, "write_state", wait_and_write)
    return goes_on


def test_steps_are_taken_while_one_checkpoint_is_written_and_the_next_waits_for_it(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    desk = Desk()
    store = open_store(tmp_path, desk, every=2)
    for step in range(1, 7):
        store.step_taken(step, lambda: state(step))  # noqa: B023  # called at once
    assert desk.told == [] and steps_on_disk(tmp_path) == []
    slow_disk.set()
    store.finish()
    assert desk.told == [("checkpointing", 2), ("checkpointed", 2)] and store.saved_step == 2
    store.step_taken(7, lambda: state(7))
    store.finish()
    assert steps_on_disk(tmp_path) == [2, 7]


def test_what_is_written_is_the_state_of_its_step_whatever_became_of_it_since(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    store, live = open_store(tmp_path, Desk()), state(1)
    store.step_taken(1, lambda: live)
    live["optimizer"]["masters"]["w"].fill_(99.0)
    live["optimizer"]["adam"][0].fill_(99.0)
    slow_disk.set()
    store.finish()
    restored = open_store(tmp_path, Desk()).restore()
    assert restored is not None and restored["step"] == 1
    assert restored["optimizer"]["masters"]["w"].tolist() == [1.0] * 3
    assert restored["optimizer"]["adam"][0].item() == 1.0


def test_a_checkpoint_names_the_ledger_the_run_and_the_step(tmp_path: Path) -> None:
    desk = Desk()
    store = open_store(tmp_path, desk)
    assert store.restore() is None
    store.save_now(4, lambda: state(4))
    (folder,) = tmp_path.iterdir()
    assert read_position(folder) == LedgerPosition(ledger="the ledger", run="firstrunofall", step=4)
    again = open_store(tmp_path, desk, "secondrunofall")
    restored = again.restore()
    assert restored is not None and again.saved_step == 4
    assert desk.offered == [LedgerPosition(ledger="the ledger", run="firstrunofall", step=4)]


def test_a_crash_at_any_moment_of_a_save_leaves_the_previous_checkpoint_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after everything that a save does to the disk or tells anybody, the folder is copied as it is."""
    root, moments = tmp_path / "checkpoints", tmp_path / "moments"
    desk = Desk()
    store = open_store(root, desk, keep=1)
    store.restore()
    store.save_now(1, lambda: state(1))
    told_at: list[int] = []

    def photograph() -> None:
        shutil.copytree(root, moments / f"{len(told_at):03d}")
        told_at.append(desk.told.count(("checkpointed", 2)))

    with monkeypatch.context() as patch:
        for owner, name in (
            (os, "fsync"), (Path, "replace"), (Path, "unlink"), (os, "unlink"), (os, "rmdir"), (desk, "ask"),
        ):  # fmt: skip
            patch.setattr(owner, name, _around(getattr(owner, name), photograph))
        store.step_taken(2, lambda: state(2))
        store.finish()
    assert len(told_at) > 15 and told_at[0] == 0 and told_at[-1] == 1
    seen = []
    for moment, told in zip(sorted(moments.iterdir()), told_at, strict=True):
        for folder in moment.iterdir():
            assert read_step(folder) is None or (folder / "rank-0-of-1.pt").exists(), "half of a checkpoint is none"
        later = open_store(moment, Desk(), "secondrunofall", keep=1)
        restored = later.restore()
        assert restored is not None and restored["optimizer"]["masters"]["w"].tolist() == [float(restored["step"])] * 3
        assert restored["step"] == 2 or not told, "turns are trained, but the weights that learned from them are gone"
        seen.append(restored["step"])
        later.save_now(3, lambda: state(3))
        assert steps_on_disk(moment) == [3], "what a crash left behind goes"
    assert seen == sorted(seen) and set(seen) == {1, 2}


def _around(call: Callable[..., Any], do: Callable[[], None]) -> Callable[..., Any]:

    def wrapped(*arguments: Any, **options: Any) -> Any:
        # Taking the picture uses the same calls.
        if getattr(_PICTURE, "taking", False):
            return call(*arguments, **options)
        _picture(do)
        result = call(*arguments, **options)
        _picture(do)
        return result

    return wrapped


_PICTURE = threading.local()


def _picture(do: Callable[[], None]) -> None:
    _PICTURE.taking = True
    try:
        do()
    finally:
        _PICTURE.taking = False


def test_a_write_that_fails_leaves_nothing_is_told_and_tried_again_after_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    store = open_store(tmp_path, desk)
    store.save_now(1, lambda: state(1))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        store.step_taken(2, lambda: state(2))
        store.finish()
        assert desk.told[2:] == [("checkpoint_failed", 2)]
        assert steps_on_disk(tmp_path) == [1], "no half of a file either"
        with pytest.raises(RuntimeError, match=r"step 3 could not be written.*No space left"):
            store.save_now(3, lambda: state(3))
    store.step_taken(4, lambda: state(4))
    store.finish()
    assert steps_on_disk(tmp_path) == [1, 4] and store.saved_step == 4


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_as_many_are_kept_as_the_configuration_says(tmp_path: Path, keep: int) -> None:
    store = open_store(tmp_path, Desk(), keep=keep)
    for step in range(1, 6):
        store.save_now(step, lambda: state(step))  # noqa: B023  # called at once
        assert len(list(tmp_path.iterdir())) == min(step, keep)
    assert steps_on_disk(tmp_path) == list(range(6 - keep, 6))


def test_checkpoints_that_were_passed_over_do_not_count_and_go_once_enough_good_ones_are_newer(tmp_path: Path) -> None:
    desk = Desk()
    store = open_store(tmp_path, desk, keep=9)
    for step in (1, 2, 3, 4, 5):
        store.save_now(step, lambda: state(step))  # noqa: B023  # called at once
    # 5 and 4 were written by a run that had been replaced; of 3 the disk has lost the index, of 2 the state.
    desk.foreign = {4, 5}
    folders = sorted(tmp_path.iterdir())
    (folders[2] / "checkpoint.json").write_text("{")
    (folders[1] / "rank-0-of-1.pt").unlink()
    heir = open_store(tmp_path, desk, "secondrunofall", keep=2)
    with pytest.raises(ValueError, match=r"000002-step-00000002-.* goes on from the checkpoint before"):
        heir.restore()
    shutil.rmtree(folders[1])
    restored = heir.restore()
    assert restored is not None and restored["step"] == 1
    heir.save_now(6, lambda: state(6))
    assert steps_on_disk(tmp_path) == [1, None, 4, 5, 6], "the newest good one of before stays"
    heir.save_now(7, lambda: state(7))
    assert steps_on_disk(tmp_path) == [6, 7], "and the disk is bounded"


def test_a_checkpoint_whose_state_is_gone_does_not_push_out_the_one_before(tmp_path: Path) -> None:
    store = open_store(tmp_path, Desk(), keep=2)
    store.save_now(1, lambda: state(1))
    store.save_now(2, lambda: state(2))
    next(tmp_path.glob("*-step-00000002-*/rank-0-of-1.pt")).unlink()
    store.save_now(3, lambda: state(3))
    assert steps_on_disk(tmp_path) == [1, 2, 3]
    store.save_now(4, lambda: state(4))
    assert steps_on_disk(tmp_path) == [3, 4]


def test_training_does_not_begin_anew_because_every_checkpoint_is_damaged(tmp_path: Path) -> None:
    open_store(tmp_path, Desk()).save_now(1, lambda: state(1))
    next(tmp_path.glob("*/checkpoint.json")).write_text("[]")
    with pytest.raises(RuntimeError, match=r"no checkpoint is left that can be read: .*000001.* move it away"):
        open_store(tmp_path, Desk()).restore()
    assert len(list(tmp_path.iterdir())) == 1, "what is damaged may be mended"


def test_the_same_step_can_be_saved_again_and_the_later_one_is_restored(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    """After a rewind the step is the same and the weights are others; a save that was on its way comes first."""
    desk = Desk()
    store = open_store(tmp_path, desk)
    store.step_taken(5, lambda: state(5))
    slow_disk.set()
    store.save_now(5, lambda: {**state(5), "rewound_to": 7})
    assert desk.told == [("checkpointing", 5), ("checkpointed", 5)] * 2
    restored = open_store(tmp_path, Desk()).restore()
    assert restored is not None and restored["rewound_to"] == 7


@pytest.mark.parametrize("refused", ["checkpointing", "checkpointed"])
def test_a_run_that_was_replaced_ends_and_removes_nothing(tmp_path: Path, refused: str) -> None:
    desk = Desk()
    store = open_store(tmp_path, desk, keep=1)
    store.save_now(1, lambda: state(1))
    desk.refuses = {refused}
    with pytest.raises(RuntimeError, match="another training run has taken over"):
        store.save_now(2, lambda: state(2))
    assert steps_on_disk(tmp_path)[0] == 1
    assert steps_on_disk(tmp_path)[1] == (None if refused == "checkpointing" else 2)


def test_a_checkpoint_that_cannot_be_read_is_named_and_so_is_the_way_on(tmp_path: Path) -> None:
    open_store(tmp_path, Desk()).save_now(1, lambda: state(1))
    (file,) = tmp_path.glob("*/rank-*.pt")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"rank-0-of-1\.pt cannot be read; without the folder .* goes on from"):
        open_store(tmp_path, Desk()).restore()


def test_what_ray_train_kept_is_restored_where_there_is_nothing_newer(tmp_path: Path) -> None:
    earlier = tmp_path / "training" / "checkpoint_1"
    earlier.mkdir(parents=True)
    torch.save(state(8), earlier / "step-00000008.rank-0-of-1.pt")
    (earlier / "checkpoint.json").write_text('{"step": 8, "world_size": 1}')
    store = open_store(tmp_path, Desk())
    restored = store.restore(earlier)
    assert restored is not None and restored["step"] == store.saved_step == 8
    store.save_now(9, lambda: state(9))
    restored = open_store(tmp_path, Desk()).restore(earlier)
    assert restored is not None and restored["step"] == 9
