"""Runs a command and sees to it that nothing of it outlives us or whoever started us. Standard library only.

    python sglang_keeper.py COMMAND [ARGUMENT...]

The one who starts it holds the other end of its standard input and writes nothing: when that end closes, however its
holder died, the command's whole process group is killed. Should the keeper itself be killed, the kernel kills the
command, whose own children watch it in turn. The keeper ends with the command and passes on its exit status. (A signal
on the parent's death alone would not do for the holder: it is tied to the thread that started the child, and threads
of an actor come and go.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def main() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    child = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    signal.signal(signal.SIGTERM, lambda *_: _kill_group(child.pid))
    threading.Thread(target=_kill_at_end_of_input, args=(child.pid,), daemon=True).start()
    status = child.wait()
    # What the command leaves behind, too.
    _kill_group(child.pid)
    return status if status >= 0 else 128 - status


def _kill_at_end_of_input(group: int) -> None:
    while os.read(0, 4096):
        pass
    _kill_group(group)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
