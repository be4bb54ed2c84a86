"""Runs the chaos program from a test, in a process of its own: it takes Ray's environment for itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def chaos(folder: Path, *arguments: str, limit_s: float) -> dict[str, Any]:
    """The report, with the end of what the program said under ``output``. Nothing of it is left when this returns."""
    report, output = folder / "report.json", folder / "output.txt"
    with output.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", "--json", str(report), *arguments],
            cwd=REPOSITORY,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            program.wait(limit_s)
        finally:
            # Its reaper sees the end of it and ends the graph.
            program.kill()
            program.wait()
    said = output.read_text(errors="replace")[-8000:]
    assert report.exists(), f"the chaos run gave no report; it said:\n{said}"
    return dict(json.loads(report.read_text())) | {"output": said}
