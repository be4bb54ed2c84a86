"""Which versions are still on disk. Names and a look, without reading a tensor: the coordinator asks, too."""

from __future__ import annotations

import json
from pathlib import Path


def snapshot_name(version: int, digest: str) -> str:
    return f"v{version:06d}-{digest[:12]}"


def is_kept(folder: Path) -> bool:
    """Whether the version in ``folder`` can be loaded: it is whole, and so is what it is an addition to."""
    try:
        addition = json.loads((folder / "manifest.json").read_text()).get("addition")
        base = None if addition is None else snapshot_name(int(addition["base_version"]), addition["base_digest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return base is None or (folder.parent / base / "manifest.json").is_file()
