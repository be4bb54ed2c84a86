"""A state folder belongs to one deployment at a time.

`hold` makes the folder, locks ``holder.json`` in it and writes down who holds it; whoever comes second gets a
`FolderInUse` that names both. The lock is the kernel's: it ends with `Hold.release` or with the process, however
that ends, so nothing has to be cleaned up after a crash. The file stays behind and means nothing without the lock.
`holder` and `last_holder` only look: they make nothing and keep nobody out for longer than the patience of `hold`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

_FILE = "holder.json"
_PATIENCE_S = 10.0
_PAUSE_S = 0.05
_LOOKS = 5


class FolderInUse(RuntimeError):
    """Another living deployment holds the folder; the text names both and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The deployment by its ``name``, and the process ``pid`` on ``host`` that has held the folder ``since`` then."""

    name: str
    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"deployment {self.name!r} (process {self.pid} on {self.host}, since {began})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A folder that is ours until it is released."""

    file: IO[bytes]

    def release(self) -> None:
        self.file.close()


def hold(folder: Path, name: str, *, patience_s: float = _PATIENCE_S) -> Hold:
    """The folder for the deployment ``name``. A holder that is just ending is waited for; then `FolderInUse`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.fdopen(os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
    deadline = time.monotonic() + patience_s
    while not _lock(file, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            other = _read(file)
            file.close()
            raise FolderInUse(
                f"the state folder {folder} is in use: deployment {name!r} cannot have it while "
                f"{other or 'another deployment'} lives; stop that one, or give one of them another state_dir"
            )
        time.sleep(_PAUSE_S)
    ours = json.dumps(asdict(Holder(name=name, pid=os.getpid(), host=socket.gethostname(), since=time.time())))
    written = os.pwrite(file.fileno(), ours.encode(), 0)
    os.ftruncate(file.fileno(), written)
    return Hold(file=file)


def holder(folder: Path) -> Holder | None:
    """Who holds the folder now. Raises `OSError` where that may not be seen."""
    try:
        file = (folder / _FILE).open("rb", buffering=0)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with file:
        for _ in range(_LOOKS):
            if _lock(file, fcntl.LOCK_SH):
                return None
            if (found := _read(file)) is not None:
                return found
            # Locked, but not yet written down.
            time.sleep(_PAUSE_S)
    return Holder(name="unknown", pid=0, host="unknown", since=time.time())


def last_holder(folder: Path) -> Holder | None:
    """Whom ``holder.json`` names, living or not: two machines that read the same there see the same folder."""
    try:
        with (folder / _FILE).open("rb", buffering=0) as file:
            return _read(file)
    except OSError:
        return None


def _lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: IO[bytes]) -> Holder | None:
    text = os.pread(file.fileno(), 4096, 0).decode(errors="replace")
    try:
        # A longer text of an earlier holder may still end behind ours.
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
        return Holder(name=found["name"], pid=found["pid"], host=found["host"], since=found["since"])
    except (ValueError, TypeError, KeyError):
        return None
