"""Who may generate now: a first-come first-served gate over cache tokens and running requests.

A request reserves room for its prompt and its longest answer before it enters the engine, so the cache
can never be asked for more than it holds. Waiting is cancellable and leaves no trace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clawrl.engine.errors import NoPlace


class Slots:
    """``capacity`` cache tokens, handed out in pages of ``page_size``, to at most ``limit`` requests."""

    def __init__(self, *, capacity: int, page_size: int, limit: int) -> None:
        self._free = capacity // page_size
        self._page_size = page_size
        self._free_requests = limit
        self._limit = limit
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        return self._limit - self._free_requests

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def reserve(self, tokens: int, *, within_s: float | None = None) -> AsyncIterator[None]:
        """Raises `NoPlace`."""
        pages = -(-tokens // self._page_size)
        try:
            async with asyncio.timeout(within_s):
                await self._acquire(pages)
        except TimeoutError:
            raise NoPlace(f"no slot was free within {within_s} s") from None
        try:
            yield
        finally:
            self._release(pages)

    async def _acquire(self, pages: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((pages, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            # Cancelled after it was let in but before it could run: give the room back.
            if turn.done() and not turn.cancelled():
                self._release(pages)
            else:
                self._queue = deque(entry for entry in self._queue if entry[1] is not turn)
                self._admit()
            raise

    def _release(self, pages: int) -> None:
        self._free += pages
        self._free_requests += 1
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._free_requests and self._queue[0][0] <= self._free:
            pages, turn = self._queue.popleft()
            if turn.cancelled():
                continue
            self._free -= pages
            self._free_requests -= 1
            turn.set_result(None)
