"""Turns are lent for one step, to one run, and come back when nobody confirms."""

from __future__ import annotations

from pathlib import Path

import pytest

from clawrl.ledger import FencedRun, Ledger, StepState, StepTaken
from clawrl.messages import DropReason, TurnId, TurnState
from tests.ledger_kit import (
    Clock,
    ask,
    ids,
    judge,
    open_ledger,
    opinion,
    queue,
    reply,
    serve,
    take_step,
    to_judging,
    user,
    verdict,
)

A = TurnId("a")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    return ledger


def test_the_oldest_queued_turns_are_lent_first_with_their_judgements(ledger: Ledger) -> None:
    queue(ledger, "a", "b", "c")
    lease = ledger.lease("run", 1, 2, now=100.0, timeout_s=30.0)
    assert lease is not None
    assert ids(lease) == ["a", "b"]
    assert (lease.run_id, lease.step, lease.deadline) == ("run", 1, 130.0)
    assert all(lent.judgement.turn_id == lent.turn.turn_id and lent.judgement.verdict == 1 for lent in lease.turns)
    row = ledger.turns(state=TurnState.LEASED)[0]
    assert (row.turn_id, row.step) == ("b", 1)
    assert ledger.state(TurnId("c")) is TurnState.QUEUED


def test_nothing_is_lent_before_enough_is_queued(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    assert ledger.lease("run", 1, 3, now=0.0, timeout_s=9.0) is None
    assert ledger.state(A) is TurnState.QUEUED
    assert len(ids(ledger.lease("run", 1, 3, now=0.0, timeout_s=9.0, minimum=2))) == 2


def test_a_minimum_beyond_the_limit_is_refused(ledger: Ledger) -> None:
    for minimum in (0, 3):
        with pytest.raises(ValueError, match="at least"):
            ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0, minimum=minimum)


def test_asking_again_for_the_same_step_gives_the_same_lease_even_after_a_restart(
    ledger: Ledger, tmp_path: Path
) -> None:
    queue(ledger, "a", "b", "c")
    first = ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)
    ledger.close()
    again = open_ledger(tmp_path).lease("run", 1, 2, now=1.0, timeout_s=99.0)
    assert first is not None and again is not None
    assert (again.lease_id, again.deadline, ids(again)) == (first.lease_id, first.deadline, ids(first))


def test_a_turn_is_in_one_lease_only(ledger: Ledger) -> None:
    queue(ledger, "a", "b", "c")
    one = ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0))
    assert ledger.lease("run", 2, 2, now=0.0, timeout_s=9.0) is None
    two = ids(ledger.lease("run", 2, 2, now=0.0, timeout_s=9.0, minimum=1))
    assert (one, two) == (["a", "b"], ["c"])


def test_a_run_that_never_registered_gets_no_lease(ledger: Ledger) -> None:
    queue(ledger, "a")
    with pytest.raises(FencedRun, match="must report what it restored"):
        ledger.lease("stranger", 1, 1, now=0.0, timeout_s=9.0)


def test_an_unconfirmed_lease_expires_and_its_turns_are_lent_again_in_their_old_order(ledger: Ledger) -> None:
    queue(ledger, "a", "b", "c")
    first = ledger.lease("run", 1, 2, now=0.0, timeout_s=10.0)
    assert first is not None
    assert ledger.expire_leases(10.0) == 0
    assert ledger.expire_leases(10.1) == 2
    assert ledger.expire_leases(10.1) == 0
    assert ledger.state(A) is TurnState.QUEUED
    second = ledger.lease("run", 1, 3, now=11.0, timeout_s=10.0)
    assert ids(second) == ["a", "b", "c"]
    assert second is not None and second.lease_id != first.lease_id


def test_asking_again_after_the_deadline_gives_a_new_lease(ledger: Ledger) -> None:
    queue(ledger, "a")
    first = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    second = ledger.lease("run", 1, 1, now=10.5, timeout_s=10.0)
    assert first is not None and second is not None
    assert first.lease_id != second.lease_id
    assert not ledger.confirm(first.lease_id, "run", 10.6)
    assert ledger.confirm(second.lease_id, "run", 10.6)


def test_the_fence_opens_up_to_the_deadline_and_not_after_it(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    one = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    two = ledger.lease("run", 2, 1, now=0.0, timeout_s=10.0)
    assert one is not None and two is not None
    assert ledger.confirm(one.lease_id, "run", 10.0)
    assert not ledger.confirm(two.lease_id, "run", 10.1), "late, even if nobody has swept yet"
    assert not ledger.confirm("ghost", "run", 1.0)
    assert not ledger.confirm(two.lease_id, "another run", 1.0)


def test_a_confirmed_lease_no_longer_expires(ledger: Ledger, tmp_path: Path) -> None:
    queue(ledger, "a")
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 5.0)
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.expire_leases(1e9) == 0
    assert ledger.confirm(lease.lease_id, "run", 1e9), "asked again, the fence answers the same"
    assert ledger.state(A) is TurnState.LEASED


def test_an_expired_lease_can_be_neither_confirmed_nor_applied(ledger: Ledger) -> None:
    queue(ledger, "a")
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    assert lease is not None
    ledger.expire_leases(11.0)
    assert not ledger.confirm(lease.lease_id, "run", 5.0)
    assert not ledger.applied(lease.lease_id, "run", {})
    assert ledger.state(A) is TurnState.QUEUED


def test_a_step_that_was_not_confirmed_is_not_applied(ledger: Ledger) -> None:
    queue(ledger, "a")
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    assert lease is not None
    assert not ledger.applied(lease.lease_id, "run", {})
    assert ledger.state(A) is TurnState.LEASED


def test_an_applied_step_is_written_down_once_with_its_reward_and_figures(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=10.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    assert ledger.applied(lease.lease_id, "run", {"loss": 0.25})
    assert ledger.applied(lease.lease_id, "run", {"loss": 99.0}), "repeated: still true, nothing changes"
    (step,) = ledger.steps()
    assert (step.step, step.state, step.turns, step.reward_mean) == (1, StepState.APPLIED, 2, 1.0)
    assert step.stats == {"loss": 0.25, "accepted_share": 1.0}
    assert ledger.turns(state=TurnState.APPLIED)[0].step == 1


def test_applied_turns_are_trained_once_a_checkpoint_includes_their_step(ledger: Ledger) -> None:
    queue(ledger, "a", "b", "c")
    take_step(ledger, "run", 1, 1)
    take_step(ledger, "run", 2, 1)
    take_step(ledger, "run", 3, 1)
    assert ledger.checkpointed("run", 2)
    states = [ledger.state(TurnId(t)) for t in ("a", "b", "c")]
    assert states == [TurnState.TRAINED, TurnState.TRAINED, TurnState.APPLIED]
    assert [s.state for s in ledger.steps()] == [StepState.APPLIED, StepState.TRAINED, StepState.TRAINED]
    assert ledger.checkpointed("run", 2), "repeated"


def test_a_checkpoint_report_may_overtake_the_report_of_its_step(ledger: Ledger) -> None:
    queue(ledger, "a")
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    assert ledger.checkpointed("run", 1)
    assert ledger.state(A) is TurnState.LEASED
    assert ledger.applied(lease.lease_id, "run", {})
    assert ledger.state(A) is TurnState.TRAINED


def test_a_step_behind_the_run_cannot_be_leased_again(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    take_step(ledger, "run", 1, 1)
    with pytest.raises(StepTaken):
        ledger.lease("run", 1, 1, now=0.0, timeout_s=9.0)
    ledger.checkpointed("run", 4)
    with pytest.raises(StepTaken):
        ledger.lease("run", 4, 1, now=0.0, timeout_s=9.0)


def test_a_turn_can_be_taken_out_of_its_lease_for_good(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=10.0)
    assert lease is not None
    assert ledger.drop_leased(lease.lease_id, A, DropReason.MALFORMED)
    assert not ledger.drop_leased(lease.lease_id, A, DropReason.MALFORMED)
    assert not ledger.drop_leased("ghost", TurnId("b"), DropReason.MALFORMED)
    assert ids(ledger.lease("run", 1, 2, now=1.0, timeout_s=10.0)) == ["b"]
    assert ledger.counts().dropped == {DropReason.MALFORMED: 1}
    ledger.expire_leases(11.0)
    assert ledger.state(A) is TurnState.DROPPED


def test_a_lease_that_ran_empty_frees_its_step(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    assert lease is not None
    ledger.drop_leased(lease.lease_id, A, DropReason.MALFORMED)
    assert ids(ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)) == ["b"]
    assert not ledger.confirm(lease.lease_id, "run", 1.0)


def test_the_queued_siblings_of_a_group_are_lent_together_at_the_place_of_the_oldest(ledger: Ledger) -> None:
    queue(ledger, "a")
    queue(ledger, "g1", group="g")
    queue(ledger, "b", "c")
    queue(ledger, "g2", "g3", group="g")
    queue(ledger, "d")
    assert set(ids(ledger.lease("run", 1, 4, now=0.0, timeout_s=9.0))) == {"a", "g1", "g2", "g3"}
    assert ids(ledger.lease("run", 2, 3, now=0.0, timeout_s=9.0)) == ["b", "c", "d"]


def test_the_limit_may_cut_a_group_and_the_rest_comes_first_in_the_next_lease(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    queue(ledger, "g1", "g2", "g3", group="g")
    queue(ledger, "c")
    assert ids(ledger.lease("run", 1, 4, now=0.0, timeout_s=9.0)) == ["a", "b", "g1", "g2"]
    assert ids(ledger.lease("run", 2, 2, now=0.0, timeout_s=9.0)) == ["g3", "c"]


def test_a_group_that_does_not_fit_waits_whole_if_the_batch_is_large_enough_without_it(ledger: Ledger) -> None:
    queue(ledger, "a", "b")
    queue(ledger, "g1", "g2", "g3", group="g")
    queue(ledger, "c")
    assert ids(ledger.lease("run", 1, 4, now=0.0, timeout_s=9.0, minimum=2)) == ["a", "b"]
    assert ids(ledger.lease("run", 2, 4, now=0.0, timeout_s=9.0, minimum=2)) == ["g1", "g2", "g3", "c"]


def test_a_group_larger_than_a_batch_is_cut_all_the_same(ledger: Ledger) -> None:
    queue(ledger, "g1", "g2", "g3", "g4", group="g")
    assert ids(ledger.lease("run", 1, 3, now=0.0, timeout_s=9.0, minimum=1)) == ["g1", "g2", "g3"]


def test_what_began_first_is_lent_first_even_if_it_was_ready_last(ledger: Ledger) -> None:
    for turn_id, began in (("quick", 1_005.0), ("slow", 1_001.0)):
        question = user(f"question of {turn_id}")
        ledger.record(serve(ask(turn_id, question, session=turn_id, at=began), question, "answer"))
        talk = question + reply("answer") + user("thanks")
        assert ledger.arrive(ask(f"{turn_id}-next", talk, session=turn_id)).to_judge is not None
        assert ledger.judged(verdict(turn_id))
    assert ids(ledger.lease("run", 1, 1, now=0.0, timeout_s=9.0)) == ["slow"]


def test_a_group_is_the_owners_own(ledger: Ledger) -> None:
    queue(ledger, "mine", group="g")
    queue(ledger, "b")
    queue(ledger, "foreign", group="g", owner="bob")
    to_judging(ledger, "undecided", group="g", owner="bob")
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)) == ["mine", "b"]


def test_only_answers_to_the_same_request_belong_together(ledger: Ledger) -> None:
    queue(ledger, "g1", group="g")
    queue(ledger, "b")
    say_in_group(ledger, "later", "another question")
    to_judging_in_group(ledger, "later", "another question")
    assert ledger.judged(verdict("later"))
    say_in_group(ledger, "undecided", "a third question")
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)) == ["g1", "b"]


def say_in_group(ledger: Ledger, turn_id: str, question: str) -> None:
    ledger.record(serve(ask(turn_id, user(question), session=turn_id, group="g"), user(question), "answer"))


def to_judging_in_group(ledger: Ledger, turn_id: str, question: str) -> None:
    talk = user(question) + reply("answer") + user("thanks")
    assert ledger.arrive(ask(f"{turn_id}-next", talk, session=turn_id)).to_judge is not None


@pytest.mark.parametrize("state", [TurnState.AWAITING_NEXT, TurnState.JUDGING, TurnState.JUDGED])
def test_queued_answers_wait_while_another_of_their_group_is_undecided_but_not_for_ever(
    tmp_path: Path, state: TurnState
) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock)
    ledger.restored("run", 0)
    queue(ledger, "g1", group="g")
    say_in_group(ledger, "g2", "question of g")
    if state is not TurnState.AWAITING_NEXT:
        to_judging_in_group(ledger, "g2", "question of g")
    if state is TurnState.JUDGED:
        ledger.judged(verdict("g2"))
        ledger._db.execute("UPDATE turns SET state = 'judged' WHERE turn_id = 'g2'")
    assert ledger.state(TurnId("g2")) is state
    queue(ledger, "b")
    assert ledger.lease("run", 1, 2, now=clock.now + 59.0, timeout_s=1.0, minimum=2) is None
    assert ids(ledger.lease("run", 1, 2, now=clock.now + 59.0, timeout_s=1.0, minimum=1)) == ["b"]
    assert ids(ledger.lease("run", 2, 2, now=clock.now + 61.0, timeout_s=1.0, minimum=1)) == ["g1", "b"]


def test_a_group_is_lent_whole_as_soon_as_its_last_answer_is_decided(ledger: Ledger) -> None:
    queue(ledger, "g1", group="g")
    to_judging(ledger, "g2", "g3", group="g")
    ledger.judged(verdict("g2"))
    assert ledger.lease("run", 1, 3, now=0.0, timeout_s=9.0, minimum=1) is None
    ledger.judged(verdict("g3"), DropReason.NEUTRAL)
    assert ids(ledger.lease("run", 1, 3, now=0.0, timeout_s=9.0, minimum=1)) == ["g1", "g2"]


def test_an_answer_that_waited_long_enough_takes_its_younger_siblings_along(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock)
    ledger.restored("run", 0)
    queue(ledger, "g1", group="g")
    clock.now += 61.0
    queue(ledger, "g2", group="g")
    to_judging(ledger, "undecided", group="g")
    assert ids(ledger.lease("run", 1, 2, now=clock.now, timeout_s=9.0)) == ["g1", "g2"]


def test_a_turn_without_a_group_has_no_siblings(ledger: Ledger) -> None:
    queue(ledger, "a", "b", "c")
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)) == ["a", "b"]


def test_what_comes_back_to_the_queue_waits_on_from_when_it_was_first_ready(tmp_path: Path) -> None:
    """A timer's round takes what was ready when it began; a crash must not put that off to the next one."""
    clock = Clock()
    ledger = open_ledger(tmp_path, clock)
    ledger.restored("run", 0)
    queue(ledger, "a", "b", "c")
    clock.now = 2_000.0
    assert ids(ledger.lease("run", 1, 1, now=clock.now, timeout_s=60.0)) == ["a"]
    clock.now = 3_000.0
    assert ledger.lease("run", 1, 3, now=clock.now, timeout_s=60.0) is not None, "the first lease had expired"
    assert ledger.queued(1_500.0) == 0
    ledger.restored("heir", 0)
    assert ledger.queued(1_500.0) == 3
    take_step(ledger, "heir", 1, 2)
    ledger.restored("heir of the heir", 0)
    assert ledger.queued(1_500.0) == 3, "a step that was undone counts no more than a lease"
    moments = [move.at for move in ledger.transitions(TurnId("a")) if move.target is TurnState.QUEUED]
    assert len(moments) == 4 and moments[0] < 1_500.0 < moments[1], "what really happened when is in the log"


def test_a_turn_that_was_judged_again_waits_from_then_on(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock)
    ledger.restored("run", 0)
    queue(ledger, "a")
    clock.now = 2_000.0
    ledger.feedback(opinion("a", 1.0, at=2_000.0))
    assert judge(ledger, "a")
    assert ledger.lease("run", 1, 1, now=clock.now, timeout_s=60.0) is not None
    ledger.restored("heir", 0)
    assert (ledger.queued(1_500.0), ledger.queued(2_500.0)) == (0, 1)
