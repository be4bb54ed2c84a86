"""A trainer's state in a folder: one file a rank, and a small index that makes them valid.

    rank-0-of-1.pt     what the rank's `PolicyTrainer.state_dict` returned
    checkpoint.json    {"step": 12, "world_size": 1, "ledger": ..., "run": ...}

Files are written under another name, synced and renamed. The index must be written when all ranks have theirs, and
names the `LedgerPosition` of the weights. Every rank writes the same index: the folder may be shared or each rank's
own. A folder is written once; see `clawrl.training.checkpointing` for how folders follow each other.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from clawrl.durable import sync_path
from clawrl.messages import LedgerPosition
from clawrl.training.model import rank, world_size

log = logging.getLogger(__name__)
_INDEX = "checkpoint.json"


def host_copy(value: Any) -> Any:
    """``value`` with every tensor copied into host memory, so that it can be written while training goes on."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: host_copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(host_copy(item) for item in value)
    return value


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """This rank's file. Not a collective."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _state_name(), lambda file: torch.save(state, file))


def write_index(folder: Path, step: int, position: LedgerPosition | None = None) -> None:
    """The checkpoint is valid from here on."""
    index: dict[str, Any] = {"step": step, "world_size": world_size()}
    if position is not None:
        index |= {"ledger": position.ledger, "run": position.run}
    _write(folder / _INDEX, lambda file: file.write(json.dumps(index).encode()))
    sync_path(folder.parent)


def remove_index(folder: Path) -> None:
    (folder / _INDEX).unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """This rank's state, or ``None`` where no checkpoint was completed."""
    index = _read_index(folder)
    if index is None:
        return None
    if index["world_size"] != world_size():
        raise ValueError(
            f"{folder} was written by {index['world_size']} ranks, but {world_size()} are reading it; set "
            "trainer.training.tp_size and fsdp_size back, or export the weights and begin with another state_dir"
        )
    # Ray Train kept them under names with the step.
    earlier = folder / f"step-{index['step']:08d}.{_state_name()}"
    file = earlier if earlier.exists() else folder / _state_name()
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{file} cannot be read; without the folder {folder} training goes on from the checkpoint before: {error}"
        ) from error
    return state


def is_finished(folder: Path) -> bool:
    """Whether all of it was written once, whatever became of it since."""
    return (folder / _INDEX).exists()


def has_state(folder: Path) -> bool:
    """Whether this rank's file is there."""
    return (folder / _state_name()).is_file()


def read_step(folder: Path) -> int | None:
    """The step of a complete checkpoint, without reading a tensor."""
    index = _read_index(folder)
    return None if index is None else index["step"]


def read_position(folder: Path) -> LedgerPosition | None:
    """Where a complete checkpoint stands; ``None`` also for those of earlier releases, which do not say."""
    index = _read_index(folder)
    if index is None or "ledger" not in index:
        return None
    return LedgerPosition(ledger=index["ledger"], run=index["run"], step=index["step"])


def _state_name() -> str:
    return f"rank-{rank()}-of-{world_size()}.pt"


def _read_index(folder: Path) -> dict[str, Any] | None:
    """``None`` also for one that cannot be read: it was written whole, so that the disk has lost it."""
    path = folder / _INDEX
    try:
        index = json.loads(path.read_text())
        return {**index, "step": int(index["step"]), "world_size": int(index["world_size"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("passed over %s, which cannot be read: %r", path, error)
        return None


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    temporary = path.with_name(f"{path.name}.{rank()}.tmp")
    try:
        with temporary.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        # Of a full disk, say: half a file must not stay to fill it.
        temporary.unlink(missing_ok=True)
    # The rename itself must survive a power cut before anyone relies on it.
    sync_path(path.parent)
