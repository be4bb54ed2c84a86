"""Ends every process of a run when the program that started it is gone, however it went.

Its standard input is a pipe that only the program holds open: the end of the file is the end of the program. It lives
in a session of its own, so that Ctrl-C does not reach it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.family import family

_LIMIT_S = 60.0


def start_reaper(folder: Path) -> subprocess.Popen[bytes]:
    """Started before the folder is in this program's environment: it must not be of the family itself."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.reaper", str(folder)],
        cwd=Path(__file__).resolve().parent.parent.parent,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def end_family(folder: Path) -> list[str]:
    """Kills until none is left, since a parent may replace what was killed. Returns the names of those it met first."""
    deadline = time.monotonic() + _LIMIT_S
    met: list[str] | None = None
    while (left := family(folder)) and time.monotonic() < deadline:
        names = []
        for process in left:
            with contextlib.suppress(psutil.Error):
                names.append(" ".join(process.cmdline())[:120])
                process.kill()
        met = names if met is None else met
        psutil.wait_procs(left, timeout=2.0)
    return met or []


if __name__ == "__main__":
    _folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    end_family(_folder)
    shutil.rmtree(_folder, ignore_errors=True)
