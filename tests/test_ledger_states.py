"""The table of legal moves, and that neither Python nor SQL lets anything else be written."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest

from clawrl.ledger.moves import move
from clawrl.ledger.states import (
    AWAITING_NEXT,
    JUDGED,
    JUDGING,
    MOVES,
    REVIVABLE,
    TERMINAL,
    IllegalMove,
    Place,
    check_move,
    dropped,
    is_legal,
)
from clawrl.messages import DropReason, TurnId, TurnState
from tests.ledger_kit import open_ledger, say, user

LEGAL = {
    ("served", "awaiting_next"),
    ("awaiting_next", "judging"),
    ("judging", "judged"),
    ("judged", "queued"),
    ("queued", "leased"),
    ("leased", "applied"),
    ("applied", "trained"),
    ("leased", "queued"),
    ("applied", "queued"),
    ("trained", "queued"),
    ("judged", "judging"),
    ("queued", "judging"),
} | {(s, "dropped") for s in ("served", "awaiting_next", "judging", "judged", "queued", "leased", "applied")}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(TurnState, TurnState)))
def test_a_move_is_allowed_exactly_if_the_plan_lists_it(source: TurnState, target: TurnState) -> None:
    if (source, target) in LEGAL:
        check_move(TurnId("t"), source, target)
    else:
        with pytest.raises(IllegalMove, match="not a legal move"):
            check_move(TurnId("t"), source, target)


def test_a_turn_is_born_served_and_nowhere_else() -> None:
    check_move(TurnId("t"), None, TurnState.SERVED)
    for state in set(TurnState) - {TurnState.SERVED}:
        with pytest.raises(IllegalMove):
            check_move(TurnId("t"), None, state)


@pytest.mark.parametrize("reason", list(DropReason))
def test_a_dropped_turn_is_judged_again_only_if_an_opinion_could_have_saved_it(reason: DropReason) -> None:
    for target in TurnState:
        assert is_legal(TurnState.DROPPED, target, reason) == (
            target is TurnState.JUDGING
            and reason in {"no_evidence", "session_ended", "judge_abstained", "neutral", "no_hint", "teacher_failed"}
        )
    if reason not in REVIVABLE:
        with pytest.raises(IllegalMove, match=f"dropped \\({reason}\\) -> judging"):
            check_move(TurnId("t"), TurnState.DROPPED, TurnState.JUDGING, reason)


def test_a_dropped_turn_is_not_moved_past_its_reason(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "lost", user("hi"), "hello", drop=DropReason.ABORTED)
    say(ledger, "idle", user("hi"), "hello", drop=DropReason.NO_EVIDENCE)
    with pytest.raises(IllegalMove), ledger.transaction():
        move(ledger._db, TurnId("lost"), JUDGING)
    move(ledger._db, TurnId("idle"), JUDGING)
    assert ledger.state(TurnId("idle")) is TurnState.JUDGING


def test_a_turn_rests_when_dropped_or_trained_and_moves_on_only_for_a_new_reason() -> None:
    assert MOVES[TurnState.DROPPED] == {TurnState.JUDGING}
    assert MOVES[TurnState.TRAINED] == {TurnState.QUEUED}
    assert {TurnState.TRAINED, TurnState.DROPPED} == TERMINAL


def test_a_place_carries_exactly_the_facts_of_its_state() -> None:
    for wrong in (
        {"state": TurnState.DROPPED},
        {"state": TurnState.QUEUED, "reason": DropReason.STALE},
        {"state": TurnState.LEASED},
        {"state": TurnState.LEASED, "step": 3},
        {"state": TurnState.APPLIED, "lease_id": "x"},
        {"state": TurnState.QUEUED, "step": 3, "lease_id": "x"},
    ):
        with pytest.raises(ValueError, match="belong"):
            Place(**wrong)  # type: ignore[arg-type]


def test_an_illegal_move_of_a_recorded_turn_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "t", user("hi"), "hello")
    before = ledger.transitions(TurnId("t"))
    with pytest.raises(IllegalMove), ledger.transaction():
        move(ledger._db, TurnId("t"), JUDGED)
    assert ledger.state(TurnId("t")) is TurnState.AWAITING_NEXT
    assert ledger.transitions(TurnId("t")) == before


def test_a_turn_that_was_never_recorded_cannot_be_moved(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for place in (AWAITING_NEXT, dropped(DropReason.FAILED)):
        with pytest.raises(IllegalMove):
            move(ledger._db, TurnId("ghost"), place)


@pytest.mark.parametrize(
    "change", ["state = 'dropped'", "reason = 'stale'", "step = 3", "state = 'leased'", "step = 3, state = 'leased'"]
)
def test_the_database_itself_refuses_a_state_without_its_facts(tmp_path: Path, change: str) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "t", user("hi"), "hello")
    with pytest.raises(sqlite3.IntegrityError):
        ledger._db.execute(f"UPDATE turns SET {change}")
