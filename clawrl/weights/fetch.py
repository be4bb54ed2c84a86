"""Snapshots for a machine that does not see the state folder: copied here in chunks, kept while they are needed.

`Library.local` says where a version lies on this machine. Where the folder itself can be read, that is it; elsewhere
its files come through a `Reader`, are written aside, and appear under their own name when all are there. The name of a
folder has the version and the digest of its bytes, which every engine checks again: no copy is mistaken for another.

What a replica has to make of a version for itself (whole weights out of adapters, for an engine that takes none) lies
here, too: the snapshots' folder is the trainer's.

Of all this only what belongs to the version that serves and to the one that was asked for last stays, with the whole
weights that they are an addition to if they are adapters (``base_of`` says where these lie, beside them). Each library
has a room of its own, locked while its process lives: what a killed one left behind goes when the next one needs room.
Rooms are opened and cleaned one at a time, so that none is taken for a dead one's between its making and its lock.
Files are moved and removed on threads, never on the event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, Protocol

Access = Literal["auto", "network"]
CHUNK_BYTES = 32 * 2**20
# The next chunk travels while one is being written.
_AHEAD = 2
_LOCK = ".lock"


class SnapshotUnreachable(RuntimeError):
    """The files of a snapshot cannot be had, here or from where they were written."""


class Reader(Protocol):
    """Reads files where the snapshots are. Raises `SnapshotUnreachable`."""

    async def sizes(self, folder: str) -> Mapping[str, int]: ...

    def read(self, folder: str, name: str, offset: int, size: int) -> Awaitable[bytes]: ...


class Library:
    """``rooms`` is a folder of this machine's; with ``access`` network the state folder is not even looked for."""

    def __init__(
        self,
        reader: Reader,
        rooms: Path,
        owner: str,
        *,
        base_of: Callable[[Path], Path | None],
        access: Access = "auto",
    ) -> None:
        self._reader = reader
        self._room = rooms / owner
        self._base_of = base_of
        self._access = access
        self._lock: IO[bytes] | None = None
        self._copies: dict[int, set[Path]] = {}
        self._busy = asyncio.Lock()

    async def local(self, folder: Path, version: int, *, held: int) -> Path:
        """Where ``version`` can be read here. ``held`` is the version that serves, whose copy stays, too."""
        if self._access == "auto" and await asyncio.to_thread(_is_snapshot, folder):
            return folder
        async with self._busy:
            await asyncio.to_thread(self._open_room)
            copy = await self._bring(folder)
            base = self._base_of(copy)
            also = set() if base is None else {await self._bring(folder.parent / base.name)}
            await asyncio.to_thread(self._keep, version, {copy, *also}, held)
            return copy

    async def make(self, version: int, write: Callable[[Path], Path], *, held: int) -> Path:
        """What ``write`` makes of ``version`` in a folder of ours; it runs on a thread and returns where that is."""
        async with self._busy:
            await asyncio.to_thread(self._open_room)
            made = await asyncio.to_thread(write, self._room)
            await asyncio.to_thread(self._keep, version, {made}, held)
            return made

    async def close(self) -> None:
        async with self._busy:
            await asyncio.to_thread(self._close_room)

    async def _bring(self, folder: Path) -> Path:
        copy = self._room / folder.name
        if not copy.is_dir():
            await self._fetch(str(folder), copy)
        return copy

    async def _fetch(self, folder: str, copy: Path) -> None:
        aside = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}")
        try:
            await asyncio.to_thread(aside.mkdir, parents=True)
            sizes = await self._reader.sizes(folder)
            for name, size in sizes.items():
                await self._fetch_file(folder, aside / name, size)
            await asyncio.to_thread(os.replace, aside, copy)
        finally:
            # Half a copy that was called off, too.
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)

    async def _fetch_file(self, folder: str, into: Path, size: int) -> None:
        offsets = list(range(0, size, CHUNK_BYTES))
        under_way: list[asyncio.Future[bytes]] = []
        with into.open("wb") as file:
            try:
                while offsets or under_way:
                    while offsets and len(under_way) < _AHEAD:
                        offset = offsets.pop(0)
                        read = self._reader.read(folder, into.name, offset, min(CHUNK_BYTES, size - offset))
                        under_way.append(asyncio.ensure_future(read))
                    chunk = await under_way.pop(0)
                    await asyncio.to_thread(file.write, chunk)
            finally:
                for task in under_way:
                    task.cancel()
        if (found := into.stat().st_size) != size:
            raise SnapshotUnreachable(f"{folder}/{into.name} came with {found} bytes instead of {size}")

    def _open_room(self) -> None:
        """Make and lock our room, and take away those whose owners are gone."""
        if self._lock is not None:
            return
        self._room.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(self._room.parent):
            self._room.mkdir(exist_ok=True)
            self._lock = _locked(self._room)
            if self._lock is None:
                raise SnapshotUnreachable(f"{self._room} is in use by another process")
            for other in self._room.parent.iterdir():
                if other.is_dir() and other != self._room and (lock := _locked(other)) is not None:
                    shutil.rmtree(other, ignore_errors=True)
                    lock.close()

    def _close_room(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self._room, ignore_errors=True)
            self._lock.close()
            self._lock = None
            self._copies.clear()

    def _keep(self, version: int, paths: set[Path], held: int) -> None:
        self._copies.setdefault(version, set()).update(paths)
        self._drop_all_but({version, held})

    def _drop_all_but(self, versions: set[int]) -> None:
        kept = {copy for version in versions & self._copies.keys() for copy in self._copies[version]}
        for version in self._copies.keys() - versions:
            for copy in self._copies.pop(version):
                if copy not in kept:
                    shutil.rmtree(copy, ignore_errors=True)


def sizes_here(folder: str) -> dict[str, int]:
    """The files of a snapshot on this machine. Raises `SnapshotUnreachable`."""
    path = Path(folder)
    if not _is_snapshot(path):
        raise SnapshotUnreachable(f"{folder} is no snapshot, or was removed because newer ones took its place")
    return {file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.is_file()}


def read_here(folder: str, name: str, offset: int, size: int) -> bytes:
    try:
        with (Path(folder) / name).open("rb") as file:
            return os.pread(file.fileno(), size, offset)
    except OSError as error:
        raise SnapshotUnreachable(f"{folder}/{name} cannot be read: {error}") from error


def _is_snapshot(folder: Path) -> bool:
    try:
        return (folder / "manifest.json").is_file()
    except OSError:
        return False


@contextmanager
def _one_at_a_time(rooms: Path) -> Iterator[None]:
    with (rooms / _LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _locked(room: Path) -> IO[bytes] | None:
    try:
        file = (room / _LOCK).open("ab")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
