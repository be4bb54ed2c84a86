"""Where the time of a step goes, by a clock that the test turns."""

from __future__ import annotations

import pytest

from clawrl.training.stopwatch import StepClock, Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_phases_add_up_until_a_lap_also_where_one_ends_in_an_error() -> None:
    clock = Clock()
    watch = Stopwatch(clock=clock)
    for seconds in (1.0, 2.0):
        with watch.phase("forward"):
            clock.now += seconds
    with pytest.raises(RuntimeError), watch.phase("backward"):
        clock.now += 4.0
        raise RuntimeError
    assert watch.lap() == {"forward": 3.0, "backward": 4.0}
    assert watch.lap() == {}


def test_a_step_lasts_from_the_end_of_the_one_before_and_holds_the_publish_in_between() -> None:
    clock = Clock()
    steps = StepClock(clock)
    with steps.phase("wait"):
        clock.now += 5.0
    clock.now += 3.0
    assert steps.step_ended({"forward": 1.0, "backward": 2.0}) == {
        "wait_s": 5.0,
        "forward_s": 1.0,
        "backward_s": 2.0,
        "step_s": 8.0,
    }
    with steps.phase("update_weights"):
        clock.now += 0.5
    # Several polls without a batch are one wait.
    for _ in range(2):
        with steps.phase("wait"):
            clock.now += 1.0
    assert steps.step_ended({}) == {"update_weights_s": 0.5, "wait_s": 2.0, "step_s": 2.5}
