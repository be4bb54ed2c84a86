"""A checkpoint in one go, where nothing else happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clawrl.training.checkpoint import write_index, write_state


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """On each rank; one that reads its own back need not wait for the others."""
    write_state(folder, state)
    write_index(folder, state["step"])
