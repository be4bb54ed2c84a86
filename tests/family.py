"""Which processes belong to one run of the graph: those that were born with its private Ray folder in RAY_TMPDIR."""

from __future__ import annotations

from pathlib import Path

import psutil

MARK = "RAY_TMPDIR"


def family(folder: Path) -> list[psutil.Process]:
    """Every living process of the run; also those that outlived their parents."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        environ = process.info["environ"] or {}
        if environ.get(MARK) == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def command_line(process: psutil.Process) -> list[str]:
    """Empty once it is gone: a process that was just found may have ended since."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
