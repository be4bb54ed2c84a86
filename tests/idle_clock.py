"""An event loop whose clock goes on only while nobody has anything to do, and then at once to the next timer.

In a story of coroutines "after 0.1 s" then means "when all that can happen by then has happened", on a quick machine,
on a slow one and on one that stalls; no time limit runs out while somebody works. While a call of the loop's executor
is under way the clock stands still. Not for threads that the loop did not start, of which it does not know, and not for
those who ask again and again without a pause: they keep it from going on.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")


class _IdleSelector(selectors.DefaultSelector):
    """Waits in reality only for threads, and for what is to be read if there is no timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.calls = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if timeout is None or self.calls:
            return super().select(None)
        self.now += timeout
        return found


class _IdleLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clockwork = _IdleSelector()
        super().__init__(self._clockwork)

    def time(self) -> float:
        return self._clockwork.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self._clockwork.calls += 1
        call = super().run_in_executor(executor, func, *args)
        call.add_done_callback(self._returned)
        return call

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self._clockwork.calls -= 1


def run_on_idle_clock(told: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on such a loop."""
    with asyncio.Runner(loop_factory=_IdleLoop) as runner:
        return runner.run(told)


def _now() -> float:
    return asyncio.get_running_loop().time()


LOOP_TIME = SimpleNamespace(time=_now, monotonic=_now)
"""For a module that looks at ``time`` itself, in the place of that: the clock of the loop."""
