"""What a person says on purpose outranks the judge, while nobody is learning from the turn yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger import FeedbackOutcome, FeedbackTaken, Ledger
from clawrl.messages import DropReason, Message, TurnId, TurnKind, TurnState, Verdict
from tests.ledger_kit import (
    ask,
    ids,
    judge,
    open_ledger,
    opinion,
    queue,
    reply,
    rows,
    say,
    serve,
    take_step,
    taught,
    to_judging,
    user,
    verdict,
)
from tests.test_ledger_durability import crash_image

A = TurnId("a")
HI = user("hi")
REVIVED = {
    DropReason.NO_EVIDENCE,
    DropReason.SESSION_ENDED,
    DropReason.JUDGE_ABSTAINED,
    DropReason.NEUTRAL,
    DropReason.NO_HINT,
    DropReason.TEACHER_FAILED,
}


def taken(answer: FeedbackTaken | None) -> FeedbackTaken:
    assert answer is not None and answer.outcome is FeedbackOutcome.TAKEN
    return answer


def test_feedback_on_a_turn_that_still_waits_makes_it_a_case_without_evidence(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    answer = taken(ledger.feedback(opinion("a", -0.5)))
    assert answer.state is TurnState.JUDGING and ledger.state(A) is TurnState.JUDGING
    assert answer.to_judge is not None
    assert (answer.to_judge.request, answer.to_judge.response) == (HI, "hello")
    assert (answer.to_judge.evidence, answer.to_judge.feedback) == ((), opinion("a", -0.5))


def test_a_comment_is_the_last_of_the_evidence_and_a_blank_one_is_none(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a", "b")
    commented = taken(ledger.feedback(opinion("a", 1.0, "just right"))).to_judge
    blank = taken(ledger.feedback(opinion("b", 1.0, " \n"))).to_judge
    assert commented is not None and blank is not None
    assert commented.evidence == (*user("thanks"), Message(role="user", content="just right"))
    assert blank.evidence == user("thanks")


@pytest.mark.parametrize("paused", [False, True])
def test_a_judged_turn_goes_back_to_the_judge_and_its_judgement_and_targets_are_withdrawn(
    tmp_path: Path, paused: bool
) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    if paused:
        ledger.pause("operator", "x")
    ledger.judged(verdict("a", 1), targets=taught())
    assert ledger.state(A) is (TurnState.JUDGED if paused else TurnState.QUEUED)
    taken(ledger.feedback(opinion("a", -1.0)))
    assert ledger.state(A) is TurnState.JUDGING
    assert (ledger.judgement(A), ledger.targets(A)) == (None, None)
    assert (ledger.judge_stats().judged, ledger.judge_stats().mean_seconds) == (0, 0.0)
    assert judge(ledger, "a", 1, targets=taught(("other",)))
    kept, targets = ledger.judgement(A), ledger.targets(A)
    assert kept is not None and targets is not None
    assert (kept.verdict, kept.feedback, kept.reward) == (Verdict.BAD, -1.0, -1.0)
    assert targets.hints == ("other",)
    assert (ledger.judge_stats().judged, ledger.judge_stats().mean_seconds) == (1, 0.25)
    assert ledger.counts().adds_up


def test_a_judgement_of_the_case_without_the_feedback_is_ignored_and_the_case_is_still_owed(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    case = taken(ledger.feedback(opinion("a", 0.25, "too long"))).to_judge
    assert not ledger.judged(verdict("a", -1), targets=taught())
    assert not ledger.judged(verdict("a", None), DropReason.JUDGE_ABSTAINED)
    assert (ledger.state(A), ledger.judgement(A), ledger.targets(A)) == (TurnState.JUDGING, None, None)
    assert ledger.known_hints("local", None, 10) == ()
    assert ledger.judge_stats().judged == 0
    assert ledger.awaiting_judgement() == [case]
    assert judge(ledger, "a", -1)
    row = ledger.turns(session="s-a", state=TurnState.QUEUED)[0]
    assert (row.verdict, row.reward) == (Verdict.GOOD, 0.25)


def test_a_judge_that_abstains_from_a_turn_with_feedback_does_not_drop_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.feedback(opinion("a", 1.0))
    assert judge(ledger, "a", None)
    assert ledger.state(A) is TurnState.QUEUED
    assert (ledger.judge_stats().judged, ledger.judge_stats().abstained) == (1, 0)


@pytest.mark.parametrize("reason", list(DropReason))
def test_feedback_revives_exactly_the_turns_that_were_dropped_for_want_of_an_opinion(
    tmp_path: Path, reason: DropReason
) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s", drop=reason)
    answer = ledger.feedback(opinion("a", 1.0))
    assert answer is not None
    if reason in REVIVED:
        assert (answer.outcome, answer.state) == (FeedbackOutcome.TAKEN, TurnState.JUDGING)
        assert ledger.counts().dropped == {}
    else:
        assert (answer.outcome, answer.state) == (FeedbackOutcome.TOO_LATE, TurnState.DROPPED)
        assert answer.to_judge is None
        assert ledger.counts().dropped == {reason: 1}
    assert ledger.counts().adds_up


def test_an_abstention_that_feedback_revives_is_no_longer_counted_as_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.judged(verdict("a", None))
    assert ledger.judge_stats().abstained == 1
    case = taken(ledger.feedback(opinion("a", 1.0))).to_judge
    assert case is not None and case.evidence == user("thanks"), "the evidence that there was is still there"
    judge(ledger, "a", None)
    assert (ledger.judge_stats().judged, ledger.judge_stats().abstained) == (1, 0)
    assert ledger.counts().adds_up and ledger.counts().dropped == {}


def test_once_a_turn_is_lent_applied_or_trained_feedback_is_too_late_and_changes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "a", "b", "c")
    take_step(ledger, "run", 1, 1)
    ledger.checkpointed("run", 1)
    take_step(ledger, "run", 2, 1)
    ledger.lease("run", 3, 1, now=0.0, timeout_s=9.0)
    for turn_id, state in (("a", TurnState.TRAINED), ("b", TurnState.APPLIED), ("c", TurnState.LEASED)):
        answer = ledger.feedback(opinion(turn_id, -1.0, "no"))
        assert answer == FeedbackTaken(outcome=FeedbackOutcome.TOO_LATE, state=state, to_judge=None)
        assert ledger.state(TurnId(turn_id)) is state
        assert ledger.judgement(TurnId(turn_id)) == verdict(turn_id)
        shown = ledger.judge_request(TurnId(turn_id))
        assert shown is not None and (shown.evidence, shown.feedback) == (user("thanks"), None)
    assert rows(ledger, "feedback") == 3, "it is kept for the record"


def test_feedback_that_was_too_late_counts_if_it_is_given_again_when_the_turn_came_back(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "a")
    ledger.lease("run", 1, 1, now=0.0, timeout_s=9.0)
    ledger.feedback(opinion("a", -1.0))
    ledger.expire_leases(10.0)
    kept = ledger.judgement(A)
    assert kept is not None and kept.reward == 1.0
    taken(ledger.feedback(opinion("a", -1.0)))
    assert ledger.state(A) is TurnState.JUDGING


def test_a_side_turn_is_never_judged_whoever_asks(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record(serve(ask("a", HI, kind=TurnKind.SIDE), HI, "hello"))
    answer = ledger.feedback(opinion("a", 1.0))
    assert answer == FeedbackTaken(outcome=FeedbackOutcome.TOO_LATE, state=TurnState.AWAITING_NEXT, to_judge=None)


def test_feedback_on_a_turn_that_nobody_knows_is_answered_with_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.arrive(ask("a", HI))
    assert ledger.feedback(opinion("a", 1.0)) is None, "not served yet"
    assert ledger.feedback(opinion("ghost", 1.0)) is None
    assert rows(ledger, "feedback") == 0


def test_the_same_opinion_again_changes_nothing_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.feedback(opinion("a", 1.0, "good"))
    judge(ledger, "a")
    log = ledger.transitions(A)
    again = taken(ledger.feedback(replace(opinion("a", 1.0, "good"), given_at=9.0)))
    assert (again.state, again.to_judge) == (TurnState.QUEUED, None)
    assert ledger.transitions(A) == log
    changed = taken(ledger.feedback(opinion("a", -1.0, "on reflection: bad")))
    assert changed.to_judge is not None and changed.to_judge.evidence == user("thanks", "on reflection: bad")
    judge(ledger, "a")
    kept = ledger.judgement(A)
    assert kept is not None and kept.reward == -1.0


def test_a_judgement_that_knew_an_earlier_opinion_is_ignored_even_if_the_score_is_the_same(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.feedback(opinion("a", -1.0, at=5.0))
    ledger.feedback(opinion("a", -1.0, "too long", at=6.0))
    of_the_first = replace(verdict("a", -1), feedback=-1.0)
    assert not ledger.judged(of_the_first, feedback_at=5.0)
    assert ledger.state(A) is TurnState.JUDGING
    assert ledger.judged(of_the_first, feedback_at=6.0)
    assert ledger.state(A) is TurnState.QUEUED


def test_cases_with_feedback_are_listed_after_a_restart_as_they_were_handed_out(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "bare", HI, "hello", session="s")
    to_judging(ledger, "a")
    handed = [taken(ledger.feedback(opinion(t, 0.5, "so so"))).to_judge for t in ("bare", "a")]
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.awaiting_judgement() == handed
    assert handed[0] is not None and handed[0].evidence == user("so so")


TALK = HI + reply("hello") + user("Please be brief.")


@pytest.mark.parametrize("session", ["s", None])
@pytest.mark.parametrize("place", ["judging", "judged", "queued", "dropped"])
def test_the_first_request_after_a_persons_feedback_still_brings_its_evidence_and_opens_the_case_again(
    tmp_path: Path, session: str | None, place: str
) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session=session)
    ledger.feedback(opinion("a", -1.0, "no"))
    if place == "judged":
        ledger.pause("operator", "x")
    if place != "judging":
        assert judge(ledger, "a", -1, DropReason.NO_HINT if place == "dropped" else None, taught())
    assert ledger.state(A) == place
    linked = ledger.arrive(ask("b", TALK, session=session))
    assert (linked.parent, ledger.state(A)) == ("a", TurnState.JUDGING)
    assert linked.to_judge is not None and linked.to_judge.evidence == user("Please be brief.", "no")
    assert linked.to_judge.feedback is not None and linked.to_judge.feedback.score == -1.0
    assert ledger.awaiting_judgement() == [linked.to_judge]
    assert (ledger.judgement(A), ledger.targets(A), ledger.judge_stats().judged) == (None, None, 0)
    assert ledger.known_hints("local", None, 10) == ()
    assert ledger.counts().adds_up and ledger.counts().dropped == {}
    assert ledger.record(serve(ask("b", TALK, session=session), TALK, "bye")).to_judge == ()
    assert judge(ledger, "a", -1)
    assert ledger.counts().adds_up and ledger.judge_stats().judged == 1


def test_a_judgement_of_the_feedback_alone_is_ignored_once_its_evidence_came(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    ledger.feedback(opinion("a", -1.0))
    bare = ledger.judge_request(A)
    assert bare is not None and bare.feedback is not None
    ledger.arrive(ask("b", TALK, session="s"))
    alone = replace(verdict("a", -1), feedback=-1.0)
    assert not ledger.judged(alone, feedback_at=bare.feedback.given_at)
    assert ledger.state(A) is TurnState.JUDGING
    assert judge(ledger, "a", -1)


def test_only_the_first_main_request_with_new_messages_is_evidence_after_feedback(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    ledger.feedback(opinion("a", -1.0))
    assert ledger.arrive(ask("side", TALK, session="s", kind=TurnKind.SIDE)).to_judge is None
    assert ledger.arrive(ask("empty", HI + reply("hello"), session="s")).to_judge is None
    assert ledger.arrive(ask("b", TALK, session="s")).to_judge is not None
    judge(ledger, "a", -1)
    later = ledger.arrive(ask("c", HI + reply("hello") + user("and shorter"), session="s"))
    assert (later.parent, later.to_judge, ledger.state(A)) == ("a", None, TurnState.QUEUED)
    assert ledger.arrive(ask("d", TALK, session="s")).to_judge is None


def test_a_turn_that_had_its_evidence_before_the_feedback_gets_no_second_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.feedback(opinion("a", -1.0))
    branch = user("question of a") + reply("answer") + user("no, really")
    assert ledger.arrive(ask("c", branch, session="s-a")).to_judge is None
    assert judge(ledger, "a")


def test_once_a_turn_with_feedback_is_lent_or_dropped_for_good_its_continuation_is_mute(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    for turn_id, drop in (("a", None), ("b", DropReason.TOO_SHORT)):
        say(ledger, turn_id, HI, "hello", session=turn_id)
        ledger.feedback(opinion(turn_id, -1.0))
        judge(ledger, turn_id, -1, drop)
    ledger.lease("run", 1, 1, now=0.0, timeout_s=9.0)
    for turn_id, state in (("a", TurnState.LEASED), ("b", TurnState.DROPPED)):
        linked = ledger.arrive(ask(f"{turn_id}-next", TALK, session=turn_id))
        assert (linked.parent, linked.to_judge) == (turn_id, None)
        assert ledger.state(TurnId(turn_id)) is state
    assert rows(ledger, "evidence") == 0


def test_a_turn_with_feedback_no_longer_ends_with_its_session_nor_for_want_of_evidence(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, idle_timeout_s=1.0)
    say(ledger, "a", HI, "hello", session="s")
    ledger.feedback(opinion("a", 1.0))
    ledger.record(serve(ask("end", HI, session="s", ends=True), HI, "bye"))
    assert ledger.sweep(1e9).no_evidence == 0
    assert ledger.state(A) is TurnState.JUDGING


def test_a_revived_turn_can_be_lent_and_is_lent_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "a", "b")
    ledger.feedback(opinion("a", -1.0))
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0, minimum=1)) == ["b"]
    judge(ledger, "a")
    assert ids(ledger.lease("run", 2, 2, now=0.0, timeout_s=9.0, minimum=1)) == ["a"]


def test_feedback_and_its_consequence_are_one_commit(tmp_path: Path) -> None:
    """Crash at every statement: either all of it happened or nothing did."""
    live = open_ledger(tmp_path / "live")
    queue(live, "a")
    images: list[Path] = []

    def photograph(statement: str) -> None:
        images.append(tmp_path / f"image{len(images)}")
        crash_image(tmp_path / "live", images[-1])

    live._db.trace(photograph)
    live.feedback(opinion("a", -1.0, "no"))
    live._db.trace(None)
    crash_image(tmp_path / "live", tmp_path / "last")
    assert len(images) > 5
    seen = set()
    for image in [*images, tmp_path / "last"]:
        ledger: Ledger = open_ledger(image)
        asked = [case.feedback for case in ledger.awaiting_judgement()]
        seen.add((ledger.state(A), ledger.judgement(A) is None, bool(asked), rows(ledger, "feedback")))
        ledger.close()
    assert seen == {(TurnState.QUEUED, False, False, 0), (TurnState.JUDGING, True, True, 1)}


def test_the_latest_turn_of_a_session_is_its_newest_main_turn(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.latest_turn("local", "s") is None
    say(ledger, "a", HI, "hello", session="s")
    say(ledger, "b", user("more"), "hello", session="s")
    say(ledger, "elsewhere", HI, "hello", session="t")
    say(ledger, "foreign", HI, "hello", session="s", owner="bob")
    ledger.record(serve(ask("side", HI, session="s", kind=TurnKind.SIDE), HI, "title"), DropReason.SIDE)
    ledger.arrive(ask("pending", HI, session="s"))
    assert ledger.latest_turn("local", "s") == "b"
