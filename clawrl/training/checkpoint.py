"""A trainer's state in a directory: one file a rank, and a small index that makes them valid.

    step-00000012.rank-0-of-1.pt    what the rank's `PolicyTrainer.state_dict` returned
    checkpoint.json                 {"step": 12, "world_size": 1}

Files are written under another name, synced and renamed, and the index comes last, after all ranks are done, so a
reader finds the previous checkpoint or the new one, whole. Every rank writes the same index: the directory may be
shared or each rank's own. Saving is a collective.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from clawrl.training.model import rank, world_size

_INDEX = "checkpoint.json"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (its ``step`` names it) and drop this rank's older files once it is valid."""
    directory.mkdir(parents=True, exist_ok=True)
    mine = _state_name(state["step"])
    _write(directory / mine, lambda file: torch.save(state, file))
    if world_size() > 1:
        dist.barrier()
    index = json.dumps({"step": state["step"], "world_size": world_size()}).encode()
    _write(directory / _INDEX, lambda file: file.write(index))
    for old in directory.glob(f"step-*.rank-{rank()}-of-*"):
        if old.name != mine:
            old.unlink()


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """This rank's state, or ``None`` where no checkpoint was ever completed."""
    index = _read_index(directory)
    if index is None:
        return None
    if index["world_size"] != world_size():
        raise ValueError(f"{directory} was written by {index['world_size']} ranks, but {world_size()} are reading it")
    state: dict[str, Any] = torch.load(directory / _state_name(index["step"]), map_location="cpu", weights_only=True)
    return state


def read_step(directory: Path) -> int | None:
    """The step of the checkpoint in ``directory``, without reading a tensor."""
    index = _read_index(directory)
    return None if index is None else index["step"]


def _state_name(step: int) -> str:
    return f"step-{step:08d}.rank-{rank()}-of-{world_size()}.pt"


def _read_index(directory: Path) -> dict[str, int] | None:
    path = directory / _INDEX
    if not path.exists():
        return None
    index: dict[str, int] = json.loads(path.read_text())
    return index


def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    temporary = path.with_name(f"{path.name}.{rank()}.tmp")
    with temporary.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    # The rename itself must survive a power cut before anyone relies on it.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
