"""Where the time between two steps went.

A device that works behind the program's back is waited for at the end of each phase, so that a phase is charged with
its own work. Phases are not nested.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch


class Stopwatch:
    def __init__(self, device: torch.device | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._waits_for = device if device is not None and device.type == "cuda" else None
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The time within the block counts as ``name``'s, however the block ends."""
        began = self._clock()
        try:
            yield
        finally:
            if self._waits_for is not None:
                torch.cuda.synchronize(self._waits_for)
            self.add(name, self._clock() - began)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """Seconds by phase since the last lap."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class StepClock:
    """From the end of one step to the end of the next; a publish belongs to the step that comes after it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._watch = Stopwatch(clock=clock)
        self._ended_at = clock()

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self._watch.phase(name)

    def step_ended(self, computed: Mapping[str, float]) -> dict[str, float]:
        """``<phase>_s`` of each phase, ``computed`` included, and ``step_s`` for all of it."""
        now = self._clock()
        seconds = {**self._watch.lap(), **computed}
        whole, self._ended_at = now - self._ended_at, now
        return {**{f"{name}_s": value for name, value in seconds.items()}, "step_s": whole}
