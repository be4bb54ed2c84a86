"""Turns that the coordinator could not take in time, kept on the disk of the replica that served them.

One file a process under ``journal/``, locked for as long as that process lives, one line a turn:

    9f1c02ab {"turn_id": ..., "owner": ..., "turn": "<base64>"}

A turn is synced before `Journal.append` returns. The checksum stands first, so that a line that a kill cut off, or that
a disk spoiled, is known and the others are still read; such a line is counted as damaged, but for a last line without
an end, which nobody was promised. A turn is redacted before it is written, as it would be on its way into the ledger,
and passes through the ledger's `Codec`; the coordinator lends the keys for that.

A living process hands its own turns in (`Journal.waiting`, `Journal.handed_in`). A file that nobody locks is that of a
dead process on this machine: `orphans` yields it, locked, for the coordinator or for the next replica. Recording is
idempotent, so a crash in between only repeats it.

Beyond ``limit_bytes`` a turn is refused with `JournalFull`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clawrl.durable import sync_path
from clawrl.ledger.codec import Codec
from clawrl.ledger.turn_codec import pack_turn, unpack_turn
from clawrl.messages import Turn, TurnId

log = logging.getLogger(__name__)
_SUFFIX, _ASIDE = ".journal", ".new"


class JournalFull(RuntimeError):
    """There is no room for another turn; the text names the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Turns in their order, and how many lines were spoiled."""

    turns: tuple[Turn, ...]
    damaged: int


def _as_it_is(turn: Turn) -> Turn:
    return turn


class Journal:
    """A file that is locked as long as this object, or its process, lives. It appears with its first turn."""

    def __init__(
        self, path: Path, codec: Codec, *, limit_bytes: int, ready: Callable[[Turn], Turn] = _as_it_is
    ) -> None:
        """``ready`` makes of a turn what may lie on a disk."""
        self.path = path
        self._ready = ready
        self._codec = codec
        self._limit_bytes = limit_bytes
        self._file: IO[bytes] | None = None
        self._turns: dict[TurnId, bytes] = {}
        # Turns are appended and handed in on threads.
        self._lock = threading.Lock()

    @classmethod
    def of_process(
        cls,
        folder: Path,
        name: str,
        codec: Codec,
        *,
        limit_bytes: int,
        ready: Callable[[Turn], Turn] = lambda turn: turn,
    ) -> Journal:
        return cls(folder / f"{name}-{os.getpid()}{_SUFFIX}", codec, limit_bytes=limit_bytes, ready=ready)

    def __len__(self) -> int:
        return len(self._turns)

    def append(self, turn: Turn) -> None:
        """On disk when this returns. Raises `JournalFull`, or `OSError` where the disk will not have it."""
        with self._lock:
            if turn.turn_id in self._turns:
                return
            line = _line(self._codec, self._ready(turn))
            if sum(map(len, self._turns.values())) + len(line) > self._limit_bytes:
                raise JournalFull(
                    f"the journal {self.path} holds {len(self)} turns and is full; "
                    "bring the coordinator back, or raise serving.journal_mb"
                )
            file = self._open()
            end = file.seek(0, os.SEEK_END)
            try:
                file.write(line)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
            self._turns[turn.turn_id] = line

    def waiting(self) -> list[Turn]:
        """What has not been handed in, oldest first."""
        with self._lock:
            lines = list(self._turns.values())
        return [turn for line in lines if (turn := _turn(self._codec, line)) is not None]

    def handed_in(self, turn_ids: Collection[TurnId]) -> None:
        """These are recorded; the file goes with the last one."""
        with self._lock:
            for turn_id in turn_ids:
                self._turns.pop(turn_id, None)
            if self._file is None:
                return
            if not self._turns:
                self.path.unlink(missing_ok=True)
                self._file.close()
                self._file = None
                return
            # Written anew beside the old one, which is whole until it is replaced.
            aside = self.path.with_suffix(_ASIDE)
            file = _open_locked(aside, create=True)
            assert file is not None
            try:
                file.truncate(0)
                file.write(b"".join(self._turns.values()))
                os.fsync(file.fileno())
                aside.replace(self.path)
            except OSError:
                # The old file has more than waits: recorded once more, which changes nothing.
                file.close()
                raise
            self._file.close()
            self._file = file

    def close(self) -> None:
        """What was not handed in stays for the next process."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = _open_locked(self.path, create=True)
            if file is None:
                raise BlockingIOError(f"{self.path} is held by another process")
            self._file = file
            sync_path(self.path.parent)
        return self._file


def orphans(folder: Path, codec: Codec) -> Iterator[tuple[Path, Found]]:
    """Files that no living process of this machine holds. One that the caller does not unlink comes again."""
    if not folder.is_dir():
        return
    for unfinished in folder.glob(f"*{_ASIDE}"):
        if (file := _open_locked(unfinished)) is not None:
            with file:
                unfinished.unlink(missing_ok=True)
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        file = _open_locked(path)
        if file is None:
            continue
        with file:
            # It may have been handed in between the look and the lock.
            if os.fstat(file.fileno()).st_nlink:
                yield path, read(path, codec)


def read(path: Path, codec: Codec) -> Found:
    turns, damaged = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        turn = _turn(codec, line)
        if turn is not None:
            turns.append(turn)
        elif line.endswith(b"\n"):
            damaged += 1
    return Found(turns=tuple(turns), damaged=damaged)


def _line(codec: Codec, turn: Turn) -> bytes:
    owner = turn.arrival.owner
    body = {"turn_id": turn.turn_id, "owner": owner, "turn": base64.b64encode(pack_turn(codec, turn)).decode("ascii")}
    text = json.dumps(body, separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _turn(codec: Codec, line: bytes) -> Turn | None:
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        body = json.loads(text)
        return unpack_turn(codec, body["owner"], base64.b64decode(body["turn"]))
    except Exception as error:
        # Whole, but of another release, or for another key: it must not keep the lines after it.
        log.error("a line of a journal cannot be read: %s", type(error).__name__)
        return None


def _open_locked(path: Path, *, create: bool = False) -> IO[bytes] | None:
    """``None`` where another process holds it, or it is gone."""
    try:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    file = os.fdopen(handle, "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
