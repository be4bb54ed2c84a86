"""Which of the trainer's seats are held by nobody."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clawrl.actors import trainer_driver
from clawrl.actors.seats import Reserved, orphaned
from clawrl.config import read_deployment

SEAT = {"CPU": 0.5, "rank": 1.0}
JOB = "01000000"
ORPHAN = Reserved(
    group_id=b"a",
    job=JOB,
    bundles=(SEAT, SEAT),
    is_detached=False,
    is_removed=False,
    made_by_actor=True,
    maker_is_dead=True,
)


def test_a_group_of_the_trainers_form_whose_maker_is_dead_is_held_by_nobody() -> None:
    assert orphaned([ORPHAN], JOB, 2, SEAT) == [ORPHAN]
    typed = replace(ORPHAN, bundles=({**SEAT, "accelerator_type:H100": 0.001},) * 2)
    assert orphaned([typed], JOB, 2, SEAT | {"GPU": 0.0}) == [typed]


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
    assert orphaned([replace(ORPHAN, **change)], JOB, 2, SEAT) == []  # type: ignore[arg-type]


def test_ranks_that_reserve_nothing_have_no_seats() -> None:
    assert orphaned([replace(ORPHAN, bundles=({}, {}))], JOB, 2, {"CPU": 0.0}) == []


def test_the_driver_looks_for_such_seats_while_its_own_training_waits_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, over = threading.Event(), threading.Event()
    asked: list[tuple[int, Mapping[str, float]]] = []

    def free(ranks: int, seat: Mapping[str, float]) -> int:
        asked.append((ranks, seat))
        if len(asked) == 1:
            raise RuntimeError("the cluster does not answer")
        looked.set()
        return 1

    monkeypatch.setattr(trainer_driver, "_SEATS_S", 0.01)
    monkeypatch.setattr(trainer_driver, "free_orphaned_seats", free)
    monkeypatch.setattr(trainer_driver.TrainerDriver, "_tell", lambda self, state: None)
    monkeypatch.setattr(trainer_driver.TrainerDriver, "_trainer", lambda self: SimpleNamespace(fit=over.wait))
    laptop = read_deployment(Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml")
    driver = trainer_driver.TrainerDriver(laptop)
    try:
        assert looked.wait(20.0), "an error must not end the watch"
        assert asked[-1] == (1, {"CPU": laptop.trainer.resources.num_cpus})
    finally:
        driver._stopping.set()
        over.set()
        driver._thread.join(20.0)


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
        assert three.wait(20.0) and set(said) == {"failed: ValueError: no disk"}
    finally:
        driver._stopping.set()
        driver._thread.join(20.0)
    assert said[-1] == "stopped"
