"""Hints that a teacher was told of other conversations: forgotten words do not live on in them."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from clawrl.messages import DropReason, TurnId, TurnState
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from tests.ledger_kit import ids, judge, rows, take_step, taught, to_judging, verdict
from tests.privacy_kit import SECRET, found_in, opened

TAUGHT, SOURCE = TurnId("taught"), "source"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def hinting(ledger: Ledger, turn_id: str, hint: str = SECRET, value: int | None = 1) -> None:
    """A turn in a session of its own, whose judgement gives this hint."""
    to_judging(ledger, turn_id, owner="ann")
    assert ledger.judged(replace(verdict(turn_id, value), hints=(hint,)))


def teach(ledger: Ledger, turn_id: str = TAUGHT) -> bool:
    """Judged without a hint of its own and taught with those that are known, as the coordinator's desk does."""
    known = ledger.known_hints("ann", None, 4)
    return ledger.judged(replace(verdict(turn_id, None), hints=()), None, taught(known))


def taught_with_hints_of(ledger: Ledger, *sources: str) -> None:
    for source in sources:
        hinting(ledger, source)
    to_judging(ledger, TAUGHT, owner="ann")
    assert teach(ledger)


def forgotten(ledger: Ledger, session: str = f"s-{SOURCE}") -> dict:  # type: ignore[type-arg]
    report = run_steps(ledger, forget(Wanted(owner="ann", session=session)))
    assert ledger.counts().adds_up
    return report


@pytest.mark.parametrize("wanted", [Wanted(owner="ann", session="s-source"), Wanted(turn_id=TurnId(SOURCE))])
@pytest.mark.parametrize("paused", [False, True], ids=["queued", "judged"])
def test_a_waiting_turn_that_was_taught_with_a_forgotten_hint_is_taught_anew(
    state: Path, wanted: Wanted, paused: bool
) -> None:
    ledger = opened(state, encrypt=False)
    if paused:
        ledger.pause("operator", "x")
    taught_with_hints_of(ledger, SOURCE)
    assert found_in(state, SECRET) != []
    run_steps(ledger, forget(wanted))
    assert ledger.state(TAUGHT) is TurnState.JUDGING and ledger.counts().adds_up
    assert ledger.targets(TAUGHT) is None and ledger.judgement(TAUGHT) is None
    assert ledger.known_hints("ann", None, 4) == () and rows(ledger, "hint_uses") == rows(ledger, "hints") == 0
    assert [case.turn_id for case in ledger.awaiting_judgement()] == [TAUGHT], "its own evidence is still there"
    if not paused:
        hinting(ledger, "other", "be kind")
        assert teach(ledger) and ledger.targets(TAUGHT).hints == ("be kind",)  # type: ignore[union-attr]
        assert ledger.state(TAUGHT) is TurnState.QUEUED
    assert found_in(state, SECRET) == []


def test_a_hint_of_an_evidence_that_is_forgotten_goes_from_the_targets_of_others(state: Path) -> None:
    ledger = opened(state)
    taught_with_hints_of(ledger, SOURCE)
    run_steps(ledger, forget(Wanted(turn_id=TurnId(f"{SOURCE}-next"))))
    assert ledger.state(TAUGHT) is TurnState.JUDGING and ledger.known_hints("ann", None, 4) == ()


def test_a_hint_that_another_conversation_gave_as_well_stays(state: Path) -> None:
    ledger = opened(state)
    taught_with_hints_of(ledger, SOURCE, "second")
    forgotten(ledger)
    assert ledger.state(TAUGHT) is TurnState.QUEUED and ledger.targets(TAUGHT) is not None
    forgotten(ledger, "s-second")
    assert ledger.state(TAUGHT) is TurnState.JUDGING and ledger.targets(TAUGHT) is None


@pytest.mark.parametrize("confirmed", [False, True], ids=["lent", "confirmed"])
def test_a_lease_of_a_turn_that_was_taught_with_it_is_void_or_its_step_is_told(state: Path, confirmed: bool) -> None:
    ledger = opened(state)
    taught_with_hints_of(ledger, SOURCE)
    ledger.restored("run", 0)
    lease = ledger.lease("run", 1, 4, now=0.0, timeout_s=60.0, minimum=1)
    assert lease is not None and ids(lease) == [SOURCE, TAUGHT]
    if confirmed:
        assert ledger.confirm(lease.lease_id, "run", 1.0)
    report = forgotten(ledger)
    assert report["evidence_steps"] == ([1] if confirmed else [])
    assert ledger.targets(TAUGHT) is None
    if not confirmed:
        assert not ledger.confirm(lease.lease_id, "run", 1.0)
        assert ledger.state(TAUGHT) is TurnState.JUDGING
    else:
        assert ledger.lease("run", 1, 4, now=0.0, timeout_s=60.0, minimum=1) is None, "asked again, it is not lent"
        assert ledger.state(TAUGHT) is TurnState.DROPPED


@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
def test_a_step_that_learned_from_the_hint_is_told_and_not_taken_again(state: Path, pruned: bool) -> None:
    ledger = opened(state, ledger={"keep_trained_steps": 0 if pruned else 100})
    hinting(ledger, SOURCE)
    ledger.restored("run", 0)
    take_step(ledger, "run", 1, 1)
    to_judging(ledger, TAUGHT, owner="ann")
    assert teach(ledger)
    assert take_step(ledger, "run", 2, 1) == [TAUGHT]
    ledger.checkpointed("run", 2)
    ledger.prune()
    assert (ledger.targets(TAUGHT) is None) == pruned
    report = forgotten(ledger)
    assert (report["steps"], report["evidence_steps"]) == ([1], [2])
    assert ledger.state(TAUGHT) is TurnState.TRAINED and ledger.targets(TAUGHT) is None
    ledger.restored("again", 0)
    assert ledger.state(TAUGHT) is TurnState.DROPPED and ledger.counts().dropped == {DropReason.FORGOTTEN: 2}


def test_a_hint_that_outlived_its_turn_is_forgotten_with_its_session(state: Path) -> None:
    ledger = opened(state, ledger={"keep_finished_turns": 1})
    hinting(ledger, SOURCE)
    ledger.restored("run", 0)
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.drop_leased(lease.lease_id, TurnId(SOURCE), DropReason.MALFORMED)
    to_judging(ledger, TAUGHT, "other", owner="ann")
    judge(ledger, "other", None)
    assert teach(ledger)
    assert ledger.prune() == 1 and ledger.turn(TurnId(SOURCE)) is None
    forgotten(ledger)
    assert ledger.state(TAUGHT) is TurnState.JUDGING and ledger.known_hints("ann", None, 4) == ("be brief",)


def test_a_teacher_that_was_told_a_hint_which_is_forgotten_meanwhile_is_asked_again(state: Path) -> None:
    ledger = opened(state)
    hinting(ledger, SOURCE)
    to_judging(ledger, TAUGHT, owner="ann")
    known = ledger.known_hints("ann", None, 4)
    forgotten(ledger)
    assert not ledger.judged(replace(verdict(TAUGHT, None), hints=()), None, taught(known))
    assert ledger.state(TAUGHT) is TurnState.JUDGING and rows(ledger, "targets") == rows(ledger, "judgements") == 0


def test_hints_of_its_own_judgement_stay_whatever_others_forget(state: Path) -> None:
    ledger = opened(state)
    hinting(ledger, SOURCE)
    to_judging(ledger, TAUGHT, owner="ann")
    assert ledger.judged(replace(verdict(TAUGHT), hints=(SECRET,)), None, taught((SECRET,)))
    forgotten(ledger)
    assert ledger.state(TAUGHT) is TurnState.QUEUED and ledger.targets(TAUGHT) is not None


@pytest.mark.parametrize("again", [False, True], ids=["old", "confirmed since"])
def test_a_hint_whose_time_is_over_goes_from_the_targets_of_younger_turns(state: Path, again: bool) -> None:
    ledger = opened(state, encrypt=False)
    now = [1_000.0]
    ledger._db.clock = lambda: now[0]
    hinting(ledger, SOURCE)
    now[0] = 2_000.0
    if again:
        hinting(ledger, "again")
    to_judging(ledger, TAUGHT, owner="ann")
    assert teach(ledger)
    while ledger.expire_text(1_500.0):
        pass
    assert ledger.state(TAUGHT) is (TurnState.QUEUED if again else TurnState.JUDGING)
    assert ledger.known_hints("ann", None, 4) == ((SECRET,) if again else ())


def test_the_hints_of_a_forgotten_user_go_with_their_uses(state: Path) -> None:
    ledger = opened(state)
    taught_with_hints_of(ledger, SOURCE)
    assert rows(ledger, "hint_uses") == 1
    run_steps(ledger, forget(Wanted(owner="ann")))
    assert rows(ledger, "hint_uses") == rows(ledger, "hints") == rows(ledger, "targets") == 0
    assert ledger.counts().dropped == {DropReason.FORGOTTEN: 2}


def test_a_ledger_of_this_format_that_knows_no_uses_of_hints_is_opened(state: Path) -> None:
    opened(state).close()
    connection = sqlite3.connect(state / "ledger.sqlite")
    connection.execute("DROP TABLE hint_uses")
    connection.commit()
    connection.close()
    with opened(state) as ledger:
        taught_with_hints_of(ledger, SOURCE)
        assert rows(ledger, "hint_uses") == 1
