"""The checkpoint is the truth: what a restored step proves, forward and backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from clawrl.ledger import FencedRun, Ledger, Restored, StepState
from clawrl.messages import TurnId, TurnState
from tests.ledger_kit import ids, open_ledger, queue, take_step


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = open_ledger(tmp_path)
    ledger.restored("one", 0)
    queue(ledger, "a", "b", "c", "d")
    return ledger


def states(ledger: Ledger) -> str:
    return " ".join(str(ledger.state(TurnId(t))) for t in "abcd")


def test_steps_in_the_checkpoint_are_trained_and_later_ones_are_replayed(ledger: Ledger) -> None:
    for step in (1, 2, 3):
        take_step(ledger, "one", step, 1)
    assert ledger.restored("two", 2) == Restored(trained=2, requeued=1, out_of_reach=False)
    assert states(ledger) == "trained trained queued queued"
    assert ids(ledger.lease("two", 3, 2, now=0.0, timeout_s=9.0)) == ["c", "d"]
    assert [(s.step, s.state) for s in ledger.steps()] == [
        (3, StepState.UNDONE),
        (2, StepState.TRAINED),
        (1, StepState.TRAINED),
    ]


def test_a_confirmed_step_that_was_never_reported_is_trained_if_the_checkpoint_has_it(ledger: Ledger) -> None:
    lease = ledger.lease("one", 1, 2, now=0.0, timeout_s=9.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "one", 1.0)
    ledger.restored("two", 1)
    assert states(ledger) == "trained trained queued queued"
    assert [(s.step, s.turns) for s in ledger.steps()] == [(1, 2)]


def test_a_confirmed_step_is_replayed_if_the_checkpoint_lacks_it(ledger: Ledger) -> None:
    lease = ledger.lease("one", 1, 2, now=0.0, timeout_s=9.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "one", 1.0)
    ledger.restored("two", 0)
    assert states(ledger) == "queued queued queued queued"


def test_an_unconfirmed_lease_was_never_stepped_whatever_the_checkpoint_says(ledger: Ledger) -> None:
    ledger.lease("one", 1, 2, now=0.0, timeout_s=9.0)
    ledger.restored("two", 1)
    assert states(ledger) == "queued queued queued queued"


def test_an_older_checkpoint_sends_even_trained_turns_back(ledger: Ledger) -> None:
    for step in (1, 2, 3):
        take_step(ledger, "one", step, 1)
    ledger.checkpointed("one", 3)
    assert states(ledger) == "trained trained trained queued"
    assert ledger.restored("two", 1) == Restored(trained=0, requeued=2, out_of_reach=False)
    assert states(ledger) == "trained queued queued queued"
    assert ids(ledger.lease("two", 2, 3, now=0.0, timeout_s=9.0)) == ["b", "c", "d"]


def test_reporting_the_same_restore_twice_changes_nothing(ledger: Ledger) -> None:
    take_step(ledger, "one", 1, 1)
    ledger.restored("two", 1)
    log = ledger.transitions(TurnId("a"))
    assert ledger.restored("two", 1) == Restored(trained=0, requeued=0, out_of_reach=False)
    assert ledger.transitions(TurnId("a")) == log


def test_a_replaced_run_is_fenced_off_everywhere(ledger: Ledger) -> None:
    open_lease = ledger.lease("one", 1, 1, now=0.0, timeout_s=9.0)
    confirmed = ledger.lease("one", 2, 1, now=0.0, timeout_s=9.0)
    assert open_lease is not None and confirmed is not None
    ledger.confirm(confirmed.lease_id, "one", 0.0)
    ledger.restored("two", 0)
    assert not ledger.confirm(open_lease.lease_id, "one", 0.0)
    assert not ledger.confirm(confirmed.lease_id, "one", 0.0)
    assert not ledger.applied(confirmed.lease_id, "one", {})
    assert not ledger.checkpointed("one", 2)
    with pytest.raises(FencedRun):
        ledger.lease("one", 3, 1, now=0.0, timeout_s=9.0)
    with pytest.raises(FencedRun, match="cannot come back"):
        ledger.restored("one", 2)
    assert states(ledger) == "queued queued queued queued"


def test_a_fenced_run_does_not_hear_that_its_applied_lease_still_stands(ledger: Ledger) -> None:
    lease = ledger.lease("one", 1, 1, now=0.0, timeout_s=9.0)
    assert lease is not None
    ledger.confirm(lease.lease_id, "one", 0.0)
    ledger.applied(lease.lease_id, "one", {})
    ledger.restored("two", 0)
    assert not ledger.applied(lease.lease_id, "one", {})


def test_the_new_run_may_take_the_steps_again_that_the_old_one_lost(ledger: Ledger) -> None:
    take_step(ledger, "one", 1, 2)
    ledger.restored("two", 0)
    assert take_step(ledger, "two", 1, 2) == ["a", "b"]
    ledger.checkpointed("two", 1)
    assert states(ledger) == "trained trained queued queued"
    assert [t.target for t in ledger.transitions(TurnId("a"))].count(TurnState.TRAINED) == 1


def test_what_a_restore_decided_survives_a_restart(ledger: Ledger, tmp_path: Path) -> None:
    take_step(ledger, "one", 1, 1)
    ledger.restored("two", 1)
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert not ledger.checkpointed("one", 9)
    assert ids(ledger.lease("two", 2, 1, now=0.0, timeout_s=9.0)) == ["b"]
