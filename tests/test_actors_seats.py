"""Which of the trainer's seats are held by nobody, or by ranks that do not get up."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clawrl.actors import seats, trainer_driver
from clawrl.actors.seats import Reserved, SeatWatch, of_the_trainer, orphaned
from clawrl.config import read_deployment

SEAT = {"CPU": 0.5, "rank": 1.0}
JOB = "01000000"
ORPHAN = Reserved(
    group_id=b"a",
    job=JOB,
    bundles=(SEAT, SEAT),
    is_detached=False,
    is_removed=False,
    is_taken=True,
    made_by_actor=True,
    maker_is_dead=True,
)
STARTING = replace(ORPHAN, maker_is_dead=False)


def found(group: Reserved, job: str, ranks: int, seat: Mapping[str, float]) -> list[Reserved]:
    return orphaned(of_the_trainer([group], job, ranks, seat))


def test_a_group_of_the_trainers_form_whose_maker_is_dead_is_held_by_nobody() -> None:
    assert found(ORPHAN, JOB, 2, SEAT) == [ORPHAN]
    typed = replace(ORPHAN, bundles=({**SEAT, "accelerator_type:H100": 0.001},) * 2)
    assert found(typed, JOB, 2, SEAT | {"GPU": 0.0}) == [typed]


@pytest.mark.parametrize(
    "change",
    [
        {"maker_is_dead": False},
        {"made_by_actor": False},
        {"job": "02000000"},
        {"is_detached": True},
        {"is_removed": True},
        {"bundles": (SEAT,)},
        {"bundles": (SEAT, {"CPU": 0.5})},
        {"bundles": (SEAT, {"CPU": 0.5, "rank": 2.0})},
    ],
    ids=str,
)
def test_any_other_group_is_left_alone(change: dict[str, object]) -> None:
    assert found(replace(ORPHAN, **change), JOB, 2, SEAT) == []  # type: ignore[arg-type]


def test_ranks_that_reserve_nothing_have_no_seats() -> None:
    assert found(replace(ORPHAN, bundles=({}, {})), JOB, 2, {"CPU": 0.0}) == []


def test_the_driver_looks_for_such_seats_while_its_own_training_waits_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, over = threading.Event(), threading.Event()
    asked: list[float] = []

    def free(watch: SeatWatch, now: float) -> tuple[int, int]:
        asked.append(now)
        if len(asked) == 1:
            raise RuntimeError("the cluster does not answer")
        looked.set()
        return 1, 1

    monkeypatch.setattr(trainer_driver, "_SEATS_S", 0.01)
    monkeypatch.setattr(SeatWatch, "free", free)
    monkeypatch.setattr(trainer_driver.TrainerDriver, "_tell", lambda self, state: None)
    monkeypatch.setattr(trainer_driver.TrainerDriver, "_trainer", lambda self: SimpleNamespace(fit=over.wait))
    laptop = read_deployment(Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml")
    driver = trainer_driver.TrainerDriver(laptop)
    try:
        assert looked.wait(120.0), "an error must not end the watch"
        assert asked[-1] == pytest.approx(time.monotonic(), abs=120.0)
    finally:
        driver._stopping.set()
        over.set()
        driver._thread.join(120.0)


def test_seats_whose_ranks_have_not_begun_in_time_are_taken_away() -> None:
    watch = SeatWatch(2, SEAT, 60.0)
    assert watch.late([STARTING], 1000.0) == []
    assert watch.late([STARTING], 1060.0) == []
    assert watch.late([STARTING], 1060.5) == [STARTING]


def test_ranks_that_have_begun_keep_their_seats_for_as_long_as_they_train() -> None:
    watch = SeatWatch(2, SEAT, 60.0)
    # The word may come before these seats were first seen.
    watch.note_begun(STARTING.group_id)
    assert all(watch.late([STARTING], now) == [] for now in (0.0, 61.0, 9999.0))
    # Those who come after them get no more time than they did.
    later = replace(STARTING, group_id=b"b")
    assert watch.late([later], 10_000.0) == [] and watch.late([later], 10_061.0) == [later]


def test_the_time_that_ranks_wait_for_seats_does_not_count() -> None:
    watch = SeatWatch(2, SEAT, 60.0)
    waiting = replace(STARTING, is_taken=False)
    assert watch.late([waiting], 0.0) == [] and watch.late([waiting], 100.0) == []
    assert watch.late([STARTING], 130.0) == [] and watch.late([STARTING], 191.0) == [STARTING]


def test_the_watch_frees_what_is_the_trainers_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = replace(STARTING, group_id=b"f", job="02000000")
    table = [ORPHAN, replace(STARTING, group_id=b"s"), foreign]
    freed: list[bytes] = []
    monkeypatch.setattr(seats, "reserved", lambda: table)
    monkeypatch.setattr(seats.ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: JOB))
    monkeypatch.setattr(seats.ray, "PlacementGroupID", lambda group_id: group_id)
    monkeypatch.setattr(seats, "PlacementGroup", lambda group_id: group_id)
    monkeypatch.setattr(seats, "remove_placement_group", freed.append)
    watch = SeatWatch(2, SEAT | {"GPU": 0.0}, 60.0)
    assert watch.free(0.0) == (1, 0) and freed == [b"a"]
    assert watch.free(61.0) == (1, 1) and freed[1:] == [b"a", b"s"]


def test_the_driver_repeats_that_training_failed_until_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    three = threading.Event()

    class Line:
        def ask_now(self, method: str, *arguments: Any, timeout_s: float) -> None:
            if method == "trainer_state":
                said.append(arguments[0])
                if len(said) == 3:
                    three.set()
                if len(said) == 2:
                    raise RuntimeError("the coordinator is away")

    def fails() -> None:
        raise ValueError("no disk")

    monkeypatch.setattr(trainer_driver, "_REPEAT_S", 0.01)
    monkeypatch.setattr(trainer_driver, "Coordinator", lambda name: Line())
    monkeypatch.setattr(trainer_driver.TrainerDriver, "_watch_seats", lambda self: None)
    monkeypatch.setattr(trainer_driver.TrainerDriver, "_trainer", lambda self: SimpleNamespace(fit=fails))
    laptop = read_deployment(Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml")
    driver = trainer_driver.TrainerDriver(laptop)
    try:
        assert three.wait(120.0) and set(said) == {"failed: ValueError: no disk"}
    finally:
        driver._stopping.set()
        driver._thread.join(120.0)
    assert said[-1] == "stopped"
