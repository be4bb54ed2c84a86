"""Whole agents, as their users start them: each is given what a user says and runs its own tools in a folder.

A driver takes an `Endpoint`, an empty folder that is home and workplace at once, and the texts of a user, and returns
what the agent answered to each. Their programs are fetched by npm, hundreds of megabytes, on first use.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_RUN_TIMEOUT_S = 900


class AgentFailed(RuntimeError):
    """The agent ended with an error; the text is what it printed."""


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> str:
    """What the program printed. It sees ``folder`` as its home and nothing of the caller's environment but ``PATH``."""
    known = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_COLOR": "1", "TERM": "dumb"}
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=known | dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    if ran.returncode != 0:
        raise AgentFailed(f"{command[0]} ended with {ran.returncode}:\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}")
    return ran.stdout
