"""When a trainer's checkpoints are written, which is restored, which are kept. Training goes on meanwhile.

    checkpoints/000007-step-00000012-1a2b3c4d/    see `clawrl.training.checkpoint`

A save copies the state into host memory at a step boundary, which is all that training waits for (and takes as much
memory as the state). A thread writes it. At later boundaries the ranks ask each other whether all have theirs on disk;
then the checkpoint becomes valid in this order, and a crash anywhere in it leaves the previous one or this one:

1. the coordinator says that this run is still the current one, and has synced the ledger up to the step;
2. every rank writes the index;
3. the coordinator is told: turns of steps up to this one are trained;
4. what is older than the newest ``keep`` good ones goes, their index first.

A checkpoint is good if every rank has its file and the ledger knows it as its own. Others (of a run that had been
replaced, of another ledger's history, half or damaged ones) are not restored and do not count: however many there are,
the newest good ones stay. They go when that many good ones are newer.

One save is on its way at most; the next begins at the first boundary after it that is due. A write that fails on any
rank leaves nothing behind, is told to the coordinator and is tried again after the next step. On start what was never
completed goes, and the coordinator chooses among the complete ones (`clawrl.ledger.checkpoint_standing`).

Folders are numbered in the order in which saves began and carry their run's id, so that a run that was replaced cannot
write over another's. Every method is a collective. On several nodes the folder must be shared, or every rank must find
its own again.

Ray Train's own checkpoints are not used: `report` is a barrier of all ranks around the copy into its storage, an
upload in the background that fails ends the run, and its index is rewritten in place, so that a kill in the middle of
that leaves no checkpoint at all.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clawrl.messages import LedgerPosition
from clawrl.training.checkpoint import (
    has_state,
    host_copy,
    is_finished,
    load_checkpoint,
    read_position,
    remove_index,
    write_index,
    write_state,
)
from clawrl.training.ranks import Ranks

log = logging.getLogger(__name__)
State = dict[str, Any]
_FOLDER = re.compile(r"(\d{6,})-step-\d{8,}-\w+")


class Checkpointing:
    """``ask`` calls the coordinator. ``earlier`` is a checkpoint of Ray Train's, for a folder without any of ours."""

    def __init__(
        self, root: Path, ranks: Ranks, ask: Callable[..., Any], run_id: str, *, every: int, keep: int
    ) -> None:
        self._root = root
        self._ranks = ranks
        self._ask = ask
        self._run_id = run_id
        self._every = every
        self._keep = keep
        self._ledger = ""
        self._saving: _Saving | None = None
        self.saved_step = 0

    def restore(self, earlier: Path | None = None) -> State | None:
        """This rank's state in the newest checkpoint that belongs to the ledger; ``None``: train from the start."""
        self._remove_unfinished()
        # Where ranks have disks of their own, a crash may have come between two of their indices.
        names = self._on_all_ranks([folder.name for folder in self._complete()])
        damaged = [str(folder) for folder in self._folders() if read_position(folder) is None]
        if not names and any(lost := self._ranks.gather(damaged)):
            first = next(filter(None, lost))[0]
            raise RuntimeError(
                f"no checkpoint is left that can be read: {first} is damaged; put checkpoints/ back from a copy, or "
                "move it away to train from the model as it came"
            )
        self._ledger, chosen = self._ranks.from_rank_0(lambda: self._choose(names))
        folder = self._root / chosen if chosen is not None else earlier
        if folder is None or (names and chosen is None):
            return None
        state = load_checkpoint(folder)
        if state is None:
            raise RuntimeError(f"the checkpoint {folder} holds no trainer state")
        self.saved_step = state["step"]
        log.info("restored step %d from %s", self.saved_step, folder)
        return state

    def _choose(self, names: list[str]) -> tuple[str, str | None]:
        positions = [read_position(self._root / name) for name in names]
        ledger, index = self._ask("resumable", positions)
        if index:
            log.warning("passed over %s: not in the history of this ledger", ", ".join(names[:index]))
        return ledger, None if index is None else names[index]

    def step_taken(self, step: int, state: Callable[[], State]) -> None:
        """Begins a save if one is due and none is on its way."""
        self.look()
        if self._saving is None and step - self.saved_step >= self._every:
            self._begin(step, state())

    def look(self) -> None:
        """Makes the checkpoint valid that is on its way, once all ranks have written it."""
        self._finish(wait=False)

    def finish(self) -> None:
        """Waits for the save that is on its way, if there is one."""
        self._finish(wait=True)

    def save_now(self, step: int, state: Callable[[], State]) -> None:
        """Valid when this returns; raises if that cannot be."""
        self._finish(wait=True)
        self._begin(step, state())
        if (problem := self._finish(wait=True)) is not None:
            raise RuntimeError(f"the checkpoint of step {step} could not be written: {problem}")

    def _begin(self, step: int, state: State) -> None:
        serials = self._ranks.gather(max(map(_serial, self._folders()), default=0))
        folder = self._root / f"{max(serials) + 1:06d}-step-{step:08d}-{self._run_id[:8]}"
        self._saving = _Saving(folder, step, host_copy(state))

    def _finish(self, *, wait: bool) -> str | None:
        """What kept the save that was on its way from being completed, if it ended now."""
        saving = self._saving
        if saving is None:
            return None
        outcomes = self._ranks.gather(saving.outcome(wait=wait))
        if None in outcomes:
            return None
        self._saving = None
        if problem := next(filter(None, outcomes), ""):
            saving.remove()
            log.error("the checkpoint of step %d was not written, training goes on: %s", saving.step, problem)
            self._ranks.from_rank_0(lambda: self._ask("checkpoint_failed", self._run_id, saving.step, problem))
            return problem
        self._complete_save(saving)
        return None

    def _complete_save(self, saving: _Saving) -> None:
        step = saving.step
        # Looked up before the coordinator is asked: what a later run writes is not in it.
        old = self._superseded(saving.folder.name)
        self._from_current_run("checkpointing", step)
        write_index(saving.folder, step, LedgerPosition(ledger=self._ledger, run=self._run_id, step=step))
        # None may go, and no turn is trained, before all ranks have it.
        self._ranks.gather(None)
        self._from_current_run("checkpointed", step)
        self.saved_step = step
        for folder in old:
            _remove(folder)

    def _superseded(self, newest: str) -> list[Path]:
        """What may go once ``newest`` is valid, good or not; nothing before there are ``keep`` good ones."""
        folders = self._folders()
        mine = [f.name for f in folders if f.name < newest and read_position(f) is not None and has_state(f)]
        names = self._on_all_ranks(mine)
        good = self._ranks.from_rank_0(lambda: self._known(names))
        oldest = [newest, *good][: self._keep][-1] if len(good) >= self._keep - 1 else None
        return [] if oldest is None else [folder for folder in folders if folder.name < oldest]

    def _known(self, names: list[str]) -> list[str]:
        positions = [read_position(self._root / name) for name in names]
        return [name for name, known in zip(names, self._ask("known", positions), strict=True) if known]

    def _on_all_ranks(self, names: list[str]) -> list[str]:
        """Those that every rank has, the newest first."""
        return sorted(set.intersection(*map(set, self._ranks.gather(names))), reverse=True)

    def _from_current_run(self, call: str, step: int) -> None:
        if not self._ranks.from_rank_0(lambda: self._ask(call, self._run_id, step)):
            raise RuntimeError(f"the checkpoint of step {step}: another training run has taken over")

    def _folders(self) -> list[Path]:
        """The newest first."""
        if not self._root.is_dir():
            return []
        return sorted((path for path in self._root.iterdir() if _FOLDER.fullmatch(path.name)), reverse=True)

    def _complete(self) -> list[Path]:
        return [folder for folder in self._folders() if read_position(folder) is not None]

    def _remove_unfinished(self) -> None:
        for folder in self._folders():
            if not is_finished(folder):
                shutil.rmtree(folder, ignore_errors=True)


class _Saving:
    """A state on its way to disk, on a thread of its own."""

    def __init__(self, folder: Path, step: int, state: State) -> None:
        self.folder = folder
        self.step = step
        self._problem = ""
        self._thread = threading.Thread(target=self._write, args=(state,), name="checkpoint", daemon=True)
        self._thread.start()

    def outcome(self, *, wait: bool) -> str | None:
        """``None`` while it is being written, then what went wrong, which is empty if nothing did."""
        if wait:
            self._thread.join()
        return None if self._thread.is_alive() else self._problem

    def remove(self) -> None:
        _remove(self.folder)

    def _write(self, state: State) -> None:
        try:
            write_state(self.folder, state)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"


def _remove(folder: Path) -> None:
    """Its index first: half of a checkpoint is none. Other ranks may be at it, too."""
    remove_index(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _serial(folder: Path) -> int:
    return int(folder.name.partition("-")[0])
