"""What has to survive a power cut is synced: a file for its content, a folder for the names in it."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Onto the disk with a file, or with the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
