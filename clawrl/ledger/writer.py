"""The ledger behind an event loop: calls run on one thread of their own, many to a commit.

`LedgerThread.run` hands over a function of the `Ledger` and returns its result once the commit that
contains it is on disk. Calls keep their order. A function that raises undoes only itself and its error
comes back to its caller; one that fails to commit fails every caller of that commit. What may not be in a
transaction runs between two commits (`LedgerThread.run_alone`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from clawrl.ledger.store import Ledger

T = TypeVar("T")
_MOST_PER_COMMIT = 64


@dataclass(slots=True)
class _Call:
    function: Callable[[Ledger], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    alone: bool = False


class LedgerThread:
    def __init__(self, open_ledger: Callable[[], Ledger]) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # Opened here, so that a ledger that cannot be read is an error of the constructor.
        self._ledger = open_ledger()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[Ledger], T]) -> T:
        loop = asyncio.get_running_loop()
        call = _Call(function, loop.create_future(), loop)
        self._calls.put(call)
        result: T = await call.future
        return result

    async def run_alone(self, function: Callable[[Ledger], T]) -> T:
        """Outside of any transaction, after what was handed over before."""
        loop = asyncio.get_running_loop()
        call = _Call(function, loop.create_future(), loop, alone=True)
        self._calls.put(call)
        result: T = await call.future
        return result

    def close(self) -> None:
        """Finish what was handed over, then close the file."""
        self._calls.put(None)
        self._thread.join()
        self._ledger.close()

    def _work(self) -> None:
        while True:
            calls, ending = self._take()
            together = [call for call in calls if not call.alone]
            if together:
                self._commit(together)
            for call in calls[len(together) :]:
                self._run_alone(call)
            if ending:
                return

    def _take(self) -> tuple[list[_Call], bool]:
        """Everything that waits, at least one, up to the most for one commit."""
        calls: list[_Call] = []
        while len(calls) < _MOST_PER_COMMIT:
            try:
                call = self._calls.get(block=not calls)
            except queue.Empty:
                break
            if call is None:
                return calls, True
            calls.append(call)
            if call.alone:
                break
        return calls, False

    def _run_alone(self, call: _Call) -> None:
        try:
            result, problem = call.function(self._ledger), None
        except Exception as error:
            result, problem = None, error
        call.loop.call_soon_threadsafe(_answer, call.future, result, problem)

    def _commit(self, calls: list[_Call]) -> None:
        answers: list[tuple[_Call, Any, BaseException | None]] = []
        try:
            with self._ledger.transaction():
                for call in calls:
                    try:
                        with self._ledger.transaction():
                            answers.append((call, call.function(self._ledger), None))
                    except Exception as error:
                        answers.append((call, None, error))
        except Exception as error:
            answers = [(call, None, error) for call in calls]
        for call, result, problem in answers:
            call.loop.call_soon_threadsafe(_answer, call.future, result, problem)


def _answer(future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)
