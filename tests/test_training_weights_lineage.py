"""The line that says what weights were made of."""

from __future__ import annotations

import pytest

from clawrl.training.weights_lineage import UNTRAINED, follow


def test_the_order_of_turns_in_a_step_does_not_matter() -> None:
    assert follow(UNTRAINED, 1, ["a", "b"]) == follow(UNTRAINED, 1, ["b", "a"])


@pytest.mark.parametrize(
    "other",
    [
        [(1, ["a", "b"]), (2, ["c", "c"])],
        [(1, ["a", "b"]), (2, [])],
        [(1, ["a", "b"]), (3, ["c"])],
        [(1, ["a"]), (2, ["b", "c"])],
        [(2, ["c"]), (1, ["a", "b"])],
        [(1, ["a", "b"]), (2, ["c"]), (3, [])],
    ],
    ids=["twice", "never", "another number", "another step", "another order", "one more step"],
)
def test_any_other_history_is_another_line(other: list[tuple[int, list[str]]]) -> None:
    def line(steps: list[tuple[int, list[str]]]) -> str:
        lineage = UNTRAINED
        for step, turn_ids in steps:
            lineage = follow(lineage, step, turn_ids)
        return lineage

    assert line([(1, ["a", "b"]), (2, ["c"])]) != line(other)
