"""What the learning bench counts in a run: blocks, moments, bounds, probes."""

from __future__ import annotations

import json

import pytest

from clawrl.evaluation.blocks import blocks, by_version, sessions_until_held, spread_out
from clawrl.evaluation.demo_users import Record
from clawrl.evaluation.learning_figures import bounds, run_figures
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.probes import PROBES, knows, probe_figures
from tests.learning_kit import PLAN, a_run, first, measures


def test_blocks_cut_first_answers_in_order_and_keep_a_short_rest() -> None:
    cut = blocks([first(n, accepted=n > 2, finish_reason="length" if n == 5 else "stop") for n in range(1, 6)], size=2)
    assert [(block.begins, block.answers) for block in cut] == [(1, 2), (3, 2), (5, 1)]
    assert [block.accepted_share for block in cut] == [0.0, 1.0, 1.0]
    assert [block.mean_words for block in cut] == [1.5, 3.5, 5.0]
    assert [block.truncated_share for block in cut] == [0.0, 0.0, 1.0]
    assert blocks([]) == []


@pytest.mark.parametrize(
    ("accepted", "held"), [("0111", 4), ("110111", 6), ("1101", None), ("", None), ("111000", 3), ("0110110", None)]
)
def test_a_preference_holds_with_the_third_accepted_answer_in_a_row(accepted: str, held: int | None) -> None:
    answers = [first(number, accepted=mark == "1") for number, mark in enumerate(accepted, 1)]
    assert sessions_until_held(answers) == held


def test_answers_are_grouped_by_version_and_thinned_out_evenly() -> None:
    answers = [first(n, version=v) for n, v in enumerate([0, 1, None, 0, 2], 1)]
    assert {v: [a.session_number for a in given] for v, given in by_version(answers).items()} == {
        0: [1, 4], 1: [2], 2: [5],
    }  # fmt: skip
    many = [first(number) for number in range(1, 11)]
    assert [answer.session_number for answer in spread_out(many, 4)] == [1, 3, 6, 8]
    assert spread_out(many[:3], 4) == many[:3]


# Figures.


def test_the_figures_of_a_run_are_over_its_first_answers() -> None:
    figures = a_run()
    json.dumps(figures)
    assert figures["sessions"] == 40 and figures["sessions_until_held"] == 23 and figures["updates"] == 4
    assert figures["updates_past_held"] == 3
    assert figures["first"]["accepted_share"] == 0.0 and figures["last"]["accepted_share"] == 1.0
    assert figures["first"]["mean_words"] == 8.5 and figures["first"]["mean_tokens"] == 17.0
    assert figures["first"]["fluency"] == -2.0 and figures["last"]["kl"] == pytest.approx(0.1)
    assert [row["version"] for row in figures["by_version"]] == [0, 1, 2, 3, 4]
    assert [row["fluency"] for row in figures["by_version"]] == [-2.0, None, None, -3.0, None]
    assert figures["by_version"][0]["accepted_share"] == 0.0 and figures["by_version"][3]["accepted_share"] == 1.0


def test_bounds_are_the_worst_of_what_came_after_the_preference_held() -> None:
    held = a_run()["after_held"]
    assert held["sessions"] == 17 and held["least_accepted"] == 1.0
    assert held["least_fluency"] == -3.0, "of version 3; version 0 came before"
    never = [first(number, accepted=False) for number in range(1, 5)]
    assert run_figures(PLAN, Observations(record=Record(answers=never)), {}, {}, {}, None, None)["after_held"] is None


def test_bounds_are_over_stretches_of_32_answers_and_a_rest_joins_the_last() -> None:
    answers = [first(number, accepted=number <= 16, words=9 if number <= 32 else 1) for number in range(1, 65)]
    whole, short, rest = bounds(answers, []), bounds(answers[32:40], []), bounds(answers[:40], [])
    assert whole is not None and short is not None and rest is not None
    assert (whole["sessions"], whole["least_accepted"], whole["fewest_words"]) == (64, 0.0, 1.0)
    assert (short["sessions"], short["least_accepted"], short["fewest_words"]) == (8, 0.0, 1.0)
    assert (rest["least_accepted"], rest["fewest_words"]) == (0.4, (32 * 9 + 8) / 40)


def test_what_the_frozen_model_says_is_bounded_over_versions_of_32_answers_together() -> None:
    rows = [
        {"version": 0, "measured": 32, "fluency": -9.0, "lift": -9.0, "kl": 9.0},
        {"version": 1, "measured": 24, "fluency": -1.0, "lift": 0.5, "kl": 0.1},
        {"version": 2, "measured": 8, "fluency": -3.0, "lift": None, "kl": 0.5},
        {"version": 3, "measured": 40, "fluency": -1.2, "lift": 0.4, "kl": 0.15},
        {"version": 4, "measured": 0, "fluency": None, "lift": None, "kl": None},
    ]
    worst = bounds([first(1, version=1)], rows)
    assert worst is not None
    assert worst["least_fluency"] == pytest.approx(-1.5) and worst["most_kl"] == pytest.approx(0.2)
    assert worst["least_lift"] == 0.4
    nothing = bounds([first(1, version=4)], rows)
    assert nothing is not None and nothing["least_fluency"] is None


# Probes.


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("What is 7 plus 5?", "It is 12.", True),
        ("What is 7 plus 5?", "Twelve, I think", True),
        ("What is 7 plus 5?", "It is 112.", False),
        ("What is the capital of France?", "paris!", True),
        ("Spell the word 'cat' letter by letter.", "Sure: C-A-T.", True),
        ("List three kinds of fruit.", "12", None),
    ],
)
def test_a_known_answer_counts_as_words_of_its_own(prompt: str, text: str, expected: bool | None) -> None:
    assert knows(first(1, question=prompt, text=text)) is expected


def test_probe_figures_are_shares_of_what_was_asked() -> None:
    answers = [
        first(1, question="What is 7 plus 5?", text="12"),
        first(3, question="How much is 6 times 4?", text="25", finish_reason="length"),
        first(5, question="List three kinds of fruit."),
    ]
    figures = probe_figures(answers, {"t1": measures(-1.0), "t5": measures(-2.0)})
    assert figures["known_share"] == 0.5 and figures["finished_share"] == pytest.approx(2 / 3)
    assert figures["mean_words"] == 3.0 and figures["fluency"] == -1.5 and figures["lift"] == 0.5


def test_there_are_twenty_different_probes_and_most_have_a_known_answer() -> None:
    assert len({probe.prompt for probe in PROBES}) == 20
    assert sum(bool(probe.known) for probe in PROBES) == 15
