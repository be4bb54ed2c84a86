"""How healthy turns look is kept for as long as a guard looks back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.messages import DropReason, ModelVitals, TurnId, Vitals
from tests.ledger_kit import open_ledger, rows, say, user

HI = user("hi")


def vitals(turn_id: str, repetition: float = 0.25, model: ModelVitals | None = None) -> Vitals:
    return Vitals(turn_id=TurnId(turn_id), version=3, response_tokens=17, repetition=repetition, model=model)


ASKED = ModelVitals(fluency=-1.5, on_topic_lift=0.75, kl=0.125)


def test_the_newest_are_read_back_oldest_first_with_and_without_the_models_figures(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    given = [vitals("a"), vitals("b", model=ASKED), vitals("c", 0.5)]
    for one in given:
        say(ledger, one.turn_id, HI, "hello")
        ledger.note_vitals(one)
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.recent_vitals(10) == given
    assert ledger.recent_vitals(2) == given[1:]


def test_a_turn_has_one_row_however_often_it_is_noted(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for one in (vitals("a"), vitals("b"), vitals("a"), vitals("a", model=ASKED)):
        ledger.note_vitals(one)
    assert ledger.recent_vitals(10) == [vitals("a", model=ASKED), vitals("b")]


def test_a_figure_that_is_not_a_number_survives_as_it_is(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.note_vitals(vitals("a", model=replace(ASKED, kl=math.nan, fluency=-math.inf)))
    model = ledger.recent_vitals(1)[0].model
    assert model is not None and math.isnan(model.kl) and (model.fluency, model.on_topic_lift) == (-math.inf, 0.75)


def test_they_go_with_their_turn_but_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl.ledger.vitals.KEEP_VITALS", 2)
    ledger = open_ledger(tmp_path, keep_finished_turns=1)
    say(ledger, "waits", HI, "hello")
    ledger.note_vitals(vitals("waits"))
    for turn_id in "abcd":
        say(ledger, turn_id, HI, "hello", drop=DropReason.GREEDY)
        ledger.note_vitals(vitals(turn_id))
    assert ledger.prune() == 3
    ledger.prune()
    assert [one.turn_id for one in ledger.recent_vitals(10)] == ["waits", "c", "d"], "c's turn is gone, c is not yet"
    for turn_id in "ef":
        say(ledger, turn_id, HI, "hello", drop=DropReason.GREEDY)
        ledger.note_vitals(vitals(turn_id))
    ledger.prune()
    ledger.prune()
    assert [one.turn_id for one in ledger.recent_vitals(10)] == ["waits", "e", "f"]


def test_figures_of_turns_that_nobody_ever_recorded_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.vitals.KEEP_VITALS", 2)
    ledger = open_ledger(tmp_path)
    for i in range(6):
        ledger.note_vitals(vitals(f"ghost{i}"))
    ledger.prune()
    assert rows(ledger, "vitals") == 2
