"""The table of the learning bench."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clawrl.evaluation.learning_report import sessions_seen, spread, table, until_held
from tests.learning_kit import PLAN, a_run


def test_a_cell_is_the_median_with_its_spread() -> None:
    assert spread([0.5, None, 0.25, 0.75], 2) == "0.50 (0.25..0.75)"
    assert spread([0.5], 1) == "0.5" and spread([None], 2) == "-"


@pytest.mark.parametrize(
    ("outcomes", "cell"),
    [
        ([(30, 40), (20, 40), (None, 16)], "30 (20..>16); never in 1 of 3"),
        ([(20, 40), (None, 16), (None, 40)], ">16 (20..>40); never in 2 of 3"),
        ([(None, 40), (None, 16)], ">16 (>16..>40); never in 2 of 2"),
        ([(20, 40), (None, 16)], ">16 (20..>16); never in 1 of 2"),
        ([(20, 40), (31, 40)], "26 (20..31)"),
        ([(20, 40)], "20"),
        ([(None, 40)], ">40; never in 1 of 1"),
    ],
)
def test_a_preference_that_never_held_counts_as_later_than_any_however_early_its_run_ended(
    outcomes: list[tuple[int | None, int]], cell: str
) -> None:
    assert until_held([a_run(sessions_until_held=held, sessions=seen) for held, seen in outcomes]) == cell


def test_runs_of_a_cell_that_are_not_equally_long_are_said_to_be() -> None:
    runs = [a_run(replace(PLAN, seed=seed), sessions=seen) for seed, seen in enumerate((40, 16, 40))]
    assert sessions_seen(runs) == "16 to 40, unequal" and sessions_seen(runs[:1]) == "40"
    assert "| 16 to 40, unequal |" in table(runs, {})


def test_the_table_has_a_row_a_method_and_says_what_went_wrong() -> None:
    runs = [a_run(replace(PLAN, seed=seed)) for seed in (0, 1)]
    runs += [a_run(replace(PLAN, method="none"), stopped_by="answers became short", ended="time limit")]
    runs += [a_run(replace(PLAN, past=50), ended="50 updates past the moment")]
    shown = table(runs, {"opd-one_sentence-0": "the server ended"})
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    header = rows[0]
    assert all(len(row) == len(header) for row in rows[:4])
    last = [line for line in shown.splitlines() if line.startswith("| one_sentence")]
    assert len(last) == 1 and last[0].endswith("| 1 of 1 COLLAPSED |")
    assert "seed 1, past holding: 3 updates were applied past holding, 50 wanted" in shown
    combine = dict(zip(header, rows[2], strict=True))
    assert combine["seeds"] == "2" and combine["accepted, last 16"] == "1.00 (1.00..1.00)"
    assert any(row[0] == "| none" for row in rows)
    assert "Past the moment" in shown and "50 updates past the moment" in shown
    for note in ("opd-one_sentence-0 FAILED: the server ended", "an alarm paused training", "ended by time limit"):
        assert note in shown
