"""The counts add up at every moment, also while everything is running: schedules that nobody thought of, and a reader.

The schedule (serve, judge, give feedback, train, checkpoint, roll back, pause, forget, expire, prune, crash) is drawn
by hypothesis, which looks for the shortest one that breaks something. The reader has a connection of its own and looks
all the time, between any two commits: whatever it sees adds up, to the turns that were served until then.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clawrl.ledger import Ledger, VersionRefused
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.messages import PolicyVersion
from tests.ledger_kit import ids, queue
from tests.ledger_world import World

WEIGHTS = {
    "talk": 12,
    "record_again": 2,
    "judge": 8,
    "give_feedback": 3,
    "pause_or_resume": 2,
    "borrow": 6,
    "take_step": 6,
    "drop_one": 1,
    "teach": 4,
    "forget": 2,
    "expire": 1,
    "roll_back": 2,
    "rewind": 2,
    "tidy": 3,
    "idle_for_long": 1,
    "restart_trainer": 1,
    "crash": 1,
    "reopen": 1,
}
OPERATIONS = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


class Watch:
    """A reader beside the writer. ``served`` is a list of how many turns may have been recorded: (least, most)."""

    def __init__(self, file: Path) -> None:
        self._ledger = Ledger(file, LedgerConfig())
        self._least = self._most = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen = 0
        self.problems: list[str] = []

    def begin(self, recorded: int) -> None:
        self._least = self._most = recorded
        self._thread.start()

    def may_grow(self, most: int) -> None:
        self._most = most

    def has(self, least: int) -> None:
        self._least = least

    def looks_again(self) -> None:
        """Comes back when it has looked once more, or has a problem."""
        seen = self.seen
        while self.seen == seen and self._thread.is_alive():
            time.sleep(0.001)

    def close(self) -> None:
        self._ending.set()
        # For as long as it takes: what it looks into must not be closed under it.
        self._thread.join()
        self._ledger.close()

    def _look(self) -> None:
        try:
            self._look_again_and_again()
        except Exception as error:
            self.problems.append(f"the reader could not look: {error!r}")

    def _look_again_and_again(self) -> None:
        while not self._ending.is_set():
            least = self._least
            counts = self._ledger.counts()
            most = self._most
            self.seen += 1
            if not counts.adds_up or not least <= counts.recorded <= most:
                self.problems.append(f"{counts} with {least} to {most} turns served")
                return
            self._ending.wait(0.002)


class WatchedWorld(World):
    """The world of the walk, with an operator who rolls back, and a reader who never stops looking."""

    def __init__(self, path: Path, seed: int) -> None:
        self.watch: Watch | None = None
        self.watches = self.rolled_back = self.done = 0
        super().__init__(path, seed)
        self.look_at(path / "0")

    def look_at(self, folder: Path) -> None:
        self.watch = Watch(folder / "ledger.db")
        self.watch.begin(self.ledger.counts().recorded)

    def look_away(self) -> None:
        if self.watch is not None:
            self.watch.close()
            assert self.watch.problems == []
            self.watches += self.watch.seen
            self.watch = None

    def do(self, operation: str) -> None:
        moved = operation in ("crash", "reopen")
        if moved:
            self.look_away()
        elif self.watch is not None:
            # No operation records more than one turn.
            self.watch.may_grow(self.ledger.counts().recorded + 1)
        getattr(self, operation)()
        if moved:
            self.look_at(self.path / str(self.crashes))
        elif self.watch is not None:
            recorded = self.ledger.counts().recorded
            self.watch.has(recorded)
            self.watch.may_grow(recorded)
            self.done += 1
            if self.done % 8 == 0:
                self.watch.looks_again()
            assert self.watch.problems == []

    def publish(self) -> None:
        """As in the walk, but no two versions have the same weights: else there is nothing to go back to."""
        number = self.ledger.next_version()
        made = PolicyVersion(
            version=number, step=self.step, snapshot=f"s{number}", digest=f"d{number}", published_at=self.clock.now
        )
        self.ledger.commit_version(made)
        self.version, self.made_by[number], self.made_by[number + 1] = number, self.step, self.step

    def roll_back(self, to: int | None = None) -> None:
        """To any version there is, or was, or never will be."""
        number = self.random.randrange(self.version + 2) if to is None else to
        before = self.ledger.current_version()
        try:
            again = self.ledger.roll_back(number)
        except VersionRefused:
            assert self.ledger.version(number) is None or before is None
            return
        assert before is not None and again.version >= before.version
        assert again.snapshot == self.ledger.version(number).snapshot  # type: ignore[union-attr]
        if again.version > before.version:
            # Else it is what was rolled back to before, and as new as when the trainer went back to it.
            self.rolled_back += 1
            self.version, self.made_by[again.version] = again.version, again.step
            self.made_by[again.version + 1] = again.step

    def rewind(self) -> None:
        """The trainer goes back to what was rolled back to, as its next order says."""
        newest = self.ledger.newest_rollback()
        if newest is not None and REWOUND_AT not in newest.stats:
            self.ledger.annotate_version(newest.version, {**newest.stats, REWOUND_AT: self.step})
            self.made_by[newest.version] = self.step

    def idle_for_long(self) -> None:
        self.clock.now += 100.0
        self.ledger.sweep(self.clock.now)


def live(schedule: list[str], seed: int) -> WatchedWorld:
    with tempfile.TemporaryDirectory() as folder:
        world = WatchedWorld(Path(folder), seed)
        try:
            for operation in schedule:
                world.do(operation)
                assert world.ledger.counts().adds_up
        finally:
            try:
                world.look_away()
            finally:
                world.ledger.close()
        return world


schedules = st.lists(st.sampled_from(OPERATIONS), min_size=20, max_size=150)
bounded = {"suppress_health_check": list(HealthCheck), "deadline": None, "database": None}


@settings(max_examples=12, derandomize=True, **bounded)  # type: ignore[arg-type]
@given(schedule=schedules, seed=st.integers(0, 2**16))
def test_in_every_snapshot_of_any_schedule_the_counts_add_up_to_what_was_served(schedule: list[str], seed: int) -> None:
    live(schedule, seed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=400, **bounded)  # type: ignore[arg-type]
@given(schedule=st.lists(st.sampled_from(OPERATIONS), min_size=50, max_size=600), seed=st.integers(0, 2**32))
def test_in_every_snapshot_of_many_long_schedules_the_counts_add_up(schedule: list[str], seed: int) -> None:
    live(schedule, seed)


def test_one_long_life_goes_through_all_of_it_and_is_looked_at_often() -> None:
    names = random.Random(5).choices(list(WEIGHTS), list(WEIGHTS.values()), k=500)
    world = live(names, 5)
    assert set(names) == set(WEIGHTS)
    assert world.watches > 50 and world.crashes > 2 and world.runs > 3 and world.rolled_back > 2
    assert world.forgotten > 2 and world.expired > 2 and world.retaught > 2


def test_what_was_rolled_back_to_twice_is_as_new_as_when_the_trainer_went_back_to_it(tmp_path: Path) -> None:
    world = WatchedWorld(tmp_path, 1)
    world.look_away()
    world.step = 20
    world.roll_back(1)
    world.rewind()
    world.roll_back(1)
    assert (world.version, world.rolled_back) == (2, 1)
    queue(world.ledger, "a", version=world.version)
    world.borrow()
    assert ids(world.lease) == ["a"]
    world.ledger.close()


def _miscounts(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger._db.execute("UPDATE counters SET value = value + 1 WHERE name = 'recorded'")


@pytest.mark.parametrize("harm", [_miscounts])
def test_the_reader_notices_counts_that_do_not_add_up(tmp_path: Path, harm: Callable[[Ledger], None]) -> None:
    world = WatchedWorld(tmp_path, 1)
    world.do("talk")
    harm(world.ledger)
    with pytest.raises(AssertionError):
        for _ in range(3):
            world.do("talk")
            if world.watch is not None:
                world.watch.looks_again()
        world.look_away()
    world.ledger.close()
