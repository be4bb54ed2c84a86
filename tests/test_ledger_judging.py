"""What a verdict does to a turn, and what a pause holds back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.messages import DropReason, TurnId, TurnState
from tests.ledger_kit import ids, open_ledger, queue, say, to_judging, user, verdict

A = TurnId("a")


@pytest.mark.parametrize("value", [1, 0, -1])
def test_an_opinion_sends_the_turn_to_the_queue(tmp_path: Path, value: int) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    assert ledger.judged(verdict("a", value))
    assert ledger.judgement(A) == verdict("a", value)
    assert [t.target for t in ledger.transitions(A)][-3:] == [TurnState.JUDGING, TurnState.JUDGED, TurnState.QUEUED]


def test_an_abstention_drops_the_turn_and_is_kept_as_an_abstention(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    assert ledger.judged(verdict("a", None))
    assert ledger.counts().dropped == {DropReason.JUDGE_ABSTAINED: 1}
    kept = ledger.judgement(A)
    assert kept is not None and kept.verdict is None
    assert TurnState.JUDGED not in [t.target for t in ledger.transitions(A)]


def test_a_drop_reason_stops_a_judged_turn_before_the_queue(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    assert ledger.judged(verdict("a", 0), DropReason.NEUTRAL)
    assert ledger.counts().dropped == {DropReason.NEUTRAL: 1}
    assert TurnState.QUEUED not in [t.target for t in ledger.transitions(A)]


def test_a_second_judgement_is_ignored(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    assert ledger.judged(verdict("a", 1))
    assert not ledger.judged(verdict("a", -1))
    assert not ledger.judged(verdict("a", None))
    assert ledger.judgement(A) == verdict("a", 1)
    assert ledger.state(A) is TurnState.QUEUED
    assert ledger.judge_stats().judged == 1


def test_a_judgement_of_a_turn_that_waits_for_none_is_ignored(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", user("hi"), "hello")
    assert not ledger.judged(verdict("a"))
    assert not ledger.judged(verdict("ghost"))
    assert ledger.judgement(A) is None
    assert ledger.state(A) is TurnState.AWAITING_NEXT


def test_a_score_that_is_not_a_number_survives_as_it_is(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.judged(replace(verdict("a"), score=math.nan, seconds=math.nan))
    kept = ledger.judgement(A)
    assert kept is not None and kept.score is not None and math.isnan(kept.score)
    assert ledger.judge_stats().mean_seconds == 0.0


def test_cases_without_an_answer_are_listed_oldest_first_after_a_restart(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for turn_id in ("a", "b", "c"):
        to_judging(ledger, turn_id)
    ledger.judged(verdict("b"))
    ledger.close()
    ledger = open_ledger(tmp_path)
    cases = ledger.awaiting_judgement()
    assert [case.turn_id for case in cases] == ["a", "c"]
    assert cases[0] == ledger.judge_request(A)
    assert cases[0].request == user("question of a") and cases[0].evidence == user("thanks")
    assert len(ledger.awaiting_judgement(1)) == 1


def test_without_evidence_there_is_nothing_to_judge(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", user("hi"), "hello")
    assert ledger.judge_request(A) is None
    assert ledger.judge_request(TurnId("ghost")) is None


def test_while_paused_turns_are_served_and_judged_but_the_queue_does_not_grow_and_nothing_is_lent(
    tmp_path: Path,
) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "early")
    paused = ledger.pause("operator", "looking at it")
    to_judging(ledger, "a")
    ledger.judged(verdict("a"))
    assert ledger.state(A) is TurnState.JUDGED
    assert ledger.lease("run", 1, 1, now=0.0, timeout_s=9.0) is None
    assert ledger.paused() == paused
    assert (paused.by, paused.reason) == ("operator", "looking at it")


def test_a_pause_outlives_a_restart_and_resume_lets_everything_in_oldest_first(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    paused = ledger.pause("guard", "kl")
    for turn_id in ("a", "b"):
        to_judging(ledger, turn_id)
    ledger.judged(verdict("b"))
    ledger.judged(verdict("a"))
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.paused() == paused
    assert ledger.resume() == 2
    assert ledger.paused() is None
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)) == ["a", "b"]
    assert ledger.resume() == 0


@pytest.mark.parametrize("by", ["operator", "guard"])
def test_a_second_pause_by_the_same_one_or_by_an_operator_changes_nothing(tmp_path: Path, by: str) -> None:
    ledger = open_ledger(tmp_path)
    first = ledger.pause(by, "one")
    assert ledger.pause(by, "two") == first
    assert ledger.pause("operator", "three") == first
    assert ledger.paused() == first


def test_the_guards_pause_takes_the_place_of_an_operators_and_quotes_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.pause("operator", "backup")
    guarded = ledger.pause("guard", "kl is 3")
    assert (guarded.by, guarded.reason) == ("guard", "kl is 3 (already paused by operator: backup)")
    assert ledger.paused() == guarded
    assert ledger.pause("guard", "kl is 4") == guarded
    ledger.resume()
    assert ledger.paused() is None


def test_an_abstention_and_a_drop_reason_count_while_paused_too(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.pause("operator", "x")
    for turn_id in ("a", "b"):
        to_judging(ledger, turn_id)
    ledger.judged(verdict("a", None))
    ledger.judged(verdict("b", 0), DropReason.NEUTRAL)
    assert ledger.counts().dropped == {DropReason.JUDGE_ABSTAINED: 1, DropReason.NEUTRAL: 1}
    assert ledger.resume() == 0


def test_judge_figures_count_answers_abstentions_and_time(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for turn_id, value in (("a", 1), ("b", None), ("c", -1)):
        to_judging(ledger, turn_id)
        ledger.judged(verdict(turn_id, value))
    stats = ledger.judge_stats()
    assert (stats.judged, stats.abstained, stats.mean_seconds) == (2, 1, 0.25)
