"""How long each recovery took: for every death something that must be true again, asked now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.notes import DeathNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    death: DeathNote
    seconds: float


class Watch:
    def __init__(self) -> None:
        self._open: list[tuple[DeathNote, Callable[[], bool]]] = []
        self.recovered: list[Recovery] = []

    @property
    def waiting(self) -> list[DeathNote]:
        return [death for death, _ in self._open]

    def expect(self, death: DeathNote, is_back: Callable[[], bool]) -> None:
        self._open.append((death, is_back))

    def look(self) -> None:
        still = []
        for death, is_back in self._open:
            if is_back():
                self.recovered.append(Recovery(death=death, seconds=time.time() - death.at))
            else:
                still.append((death, is_back))
        self._open = still
