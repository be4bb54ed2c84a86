"""The one copy of a snapshot that is on its way to this machine: that of the version that was asked for last.

Copying a large model over a slow network takes minutes, and whoever asks for it must be able to tell a replica that
copies from one that is dead. So it goes on beside everything else, and each question is answered within moments.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from clawrl.weights.fetch import Library


class Copying:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._wanted: tuple[Path, int] | None = None
        self._task: asyncio.Task[Path] | None = None

    async def here(self, folder: Path, version: int, *, held: int, within_s: float) -> Path | None:
        """Where the version can be read on this machine; ``None`` while it is still on its way: ask again.

        Asking for another version ends the copy of the one before. Raises what copying raised.
        """
        if self._task is None or self._wanted != (folder, version):
            await self.stop()
            self._wanted = folder, version
            self._task = asyncio.create_task(self._library.local(folder, version, held=held))
        done, _ = await asyncio.wait({self._task}, timeout=within_s)
        if not done:
            return None
        task, self._task = self._task, None
        return task.result()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
