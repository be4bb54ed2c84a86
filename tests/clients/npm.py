"""Programs of Node, installed by npm into a folder of their own, once."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

_INSTALL_TIMEOUT_S = 900


def installed(cache: Path, name: str, packages: Mapping[str, str]) -> Path:
    """A folder in ``cache`` with these versions below its ``node_modules``. Raises ``RuntimeError``."""
    wanted = json.dumps({"private": True, "dependencies": dict(packages)}, sort_keys=True).encode()
    folder = cache / f"{name}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
    (building / "package.json").write_bytes(wanted)
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    ran = subprocess.run(command, cwd=building, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_S)
    if ran.returncode != 0:
        shutil.rmtree(building)
        raise RuntimeError(f"npm could not install {name}:\n{ran.stderr[-2000:]}")
    try:
        building.rename(folder)
    except OSError:
        # Somebody else was faster, with the same.
        shutil.rmtree(building)
    return folder
