"""Hands what a process counted to whoever exports it, now and then, on a thread of its own.

So what is measured costs the event loop a dictionary look-up, and the exporter is called once a period for each series
and not for each token. What was counted since the last period is lost with a process that is killed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from clawrl.metrics.sink import Buffer, Reading, Sink

log = logging.getLogger(__name__)


class Flusher:
    """``write`` exports one reading. Samplers are asked right before each flush for what has a level at any time."""

    def __init__(self, write: Callable[[Reading], None], every_s: float) -> None:
        self.sink = Buffer()
        self._write = write
        self._every_s = every_s
        self._samplers: list[Callable[[Sink], None]] = []
        self._stopping = threading.Event()
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def sample(self, sampler: Callable[[Sink], None]) -> None:
        self._samplers.append(sampler)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Flush once more and end."""
        self._stopping.set()
        self._thread.join(2 * self._every_s)

    def flush(self) -> None:
        """Never raises: a process that cannot be seen goes on all the same."""
        try:
            for sampler in self._samplers:
                sampler(self.sink)
            for reading in self.sink.drain():
                self._write(reading)
        except Exception:
            if not self._complained:
                log.exception("metrics are incomplete; said once")
            self._complained = True

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self.flush()
        self.flush()
