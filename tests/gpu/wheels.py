"""Put the packages of a folder of wheels on the import path, without pip and without installing anything.

A wheel is a zip archive of what belongs on the path. Unpacking it needs no network, no pip and no right to write into
the interpreter, and what it brings comes before what the machine has.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def use_wheels(folder: Path, into: Path) -> list[str]:
    """Unpack every wheel of ``folder`` into ``into`` and import from there first. The wheels' file names."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise FileNotFoundError(f"there is no wheel in {folder}")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)
    sys.path.insert(0, str(into))
    return [wheel.name for wheel in wheels]
