"""Which turn a request continues, and when that counts as evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.messages import Arrival, DropReason, Message, TurnId, TurnKind, TurnState
from tests.ledger_kit import Clock, ask, open_ledger, reply, say, serve, user, verdict

HI = user("hi")
HELLO = HI + reply("hello")


@pytest.mark.parametrize("session", ["s", None])
def test_the_next_request_of_a_session_is_evidence_for_the_turn_it_extends(tmp_path: Path, session: str | None) -> None:
    ledger = open_ledger(tmp_path)
    first = say(ledger, "a", HI, "hello", session=session)
    linked = ledger.arrive(ask("b", HELLO + user("shorter", "please"), session=session))
    assert (linked.session, linked.parent) == (first.session, "a")
    assert linked.to_judge is not None
    assert (linked.to_judge.turn_id, linked.to_judge.request) == ("a", HI)
    assert (linked.to_judge.response, linked.to_judge.evidence) == ("hello", user("shorter", "please"))
    assert ledger.state(TurnId("a")) is TurnState.JUDGING


def test_two_anonymous_users_with_the_same_opening_message_get_different_sessions(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    one, two = say(ledger, "a", HI, "hello"), say(ledger, "b", HI, "hello")
    assert one.session != two.session
    assert one.parent is None and two.parent is None


def test_an_anonymous_request_whose_history_nobody_knows_gets_a_session_of_its_own(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    sessions = {ledger.arrive(ask(f"t{i}", user("x") + reply("elsewhere") + user("y"))).session for i in range(3)}
    assert len(sessions) == 3


def test_with_equal_answers_the_oldest_anonymous_turn_that_still_waits_gets_the_evidence(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for turn_id in ("a", "b", "c"):
        say(ledger, turn_id, HI, "hello")
    assert ledger.arrive(ask("x", HELLO + user("one"))).parent == "a"
    assert ledger.arrive(ask("y", HELLO + user("two"))).parent == "b"
    assert ledger.arrive(ask("z", HELLO + user("three"))).parent == "c"
    late = ledger.arrive(ask("w", HELLO + user("four")))
    assert (late.parent, late.to_judge) == ("c", None), "nobody waits any more: the newest is the best guess"


def test_of_equal_words_under_several_system_messages_those_of_the_request_come_first(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)

    def under(system: str, turn_id: str, talk: tuple[Message, ...]) -> Arrival:
        return replace(ask(turn_id, talk), segment=system)

    for name in ("Ann", "Bob"):
        ledger.record(serve(under(name, name, HI), HI, "hello"))
    assert ledger.arrive(under("Bob", "x", HELLO + user("one"))).parent == "Bob"
    assert ledger.arrive(under("Cleo", "y", HELLO + user("two"))).parent == "Ann", "the only one that still waits"
    assert ledger.arrive(under("Ann", "z", HELLO + user("three"))).parent == "Ann", "though Bob is newer"


def test_an_edited_last_message_links_as_a_branch_without_evidence(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    assert ledger.arrive(ask("b", HELLO + user("wrong"), session="s")).to_judge is not None
    edited = ledger.arrive(ask("c", HELLO + user("I mean: right"), session="s"))
    assert (edited.parent, edited.to_judge) == ("a", None)
    kept = ledger.judge_request(TurnId("a"))
    assert kept is not None and kept.evidence == user("wrong")


@pytest.mark.parametrize("session", ["s", None])
def test_a_retry_of_the_same_body_delivers_nothing_even_when_a_twin_still_waits(
    tmp_path: Path, session: str | None
) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session=session)
    say(ledger, "twin", HI, "hello", session=session)
    follow_up = HELLO + user("thanks")
    assert ledger.arrive(ask("b", follow_up, session=session)).to_judge is not None
    retry = ledger.arrive(ask("c", follow_up, session=session))
    assert (retry.parent, retry.to_judge) == ("a", None)
    assert ledger.state(TurnId("twin")) is TurnState.AWAITING_NEXT


def test_the_same_words_in_a_later_anonymous_conversation_are_not_taken_for_a_retry(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    yesterday = say(ledger, "a", HI, "hello")
    ledger.arrive(ask("b", HELLO + user("thanks")))
    today = say(ledger, "c", HI, "hello")
    linked = ledger.arrive(ask("d", HELLO + user("thanks")))
    assert (linked.parent, linked.session) == ("c", today.session)
    assert linked.session != yesterday.session
    assert linked.to_judge is not None


def test_parallel_requests_that_extend_one_turn_deliver_evidence_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    answers = [ledger.arrive(ask(f"p{i}", HELLO + user(f"branch {i}"), session="s")) for i in range(4)]
    assert [answer.parent for answer in answers] == ["a"] * 4
    assert [answer.to_judge is not None for answer in answers] == [True, False, False, False]


def test_both_branches_of_a_conversation_go_on_by_themselves(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    left, right = HELLO + user("left"), HELLO + user("right")
    say(ledger, "l", left, "went left", session="s")
    say(ledger, "r", right, "went right", session="s")
    assert ledger.arrive(ask("rr", right + reply("went right") + user("on"), session="s")).parent == "r"
    assert ledger.arrive(ask("ll", left + reply("went left") + user("on"), session="s")).parent == "l"


def test_arriving_twice_gives_the_same_answer_and_the_case_only_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello")
    first = ledger.arrive(ask("b", HELLO + user("more")))
    again = ledger.arrive(ask("b", HELLO + user("more")))
    assert first.to_judge is not None
    assert again == replace(first, to_judge=None)
    assert ledger.arrive(ask("n", HI)).session == ledger.arrive(ask("n", HI)).session


def test_a_request_without_new_messages_is_no_evidence(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    linked = ledger.arrive(ask("b", HELLO, session="s"))
    assert (linked.parent, linked.to_judge) == ("a", None)
    assert ledger.state(TurnId("a")) is TurnState.AWAITING_NEXT


def test_a_side_request_is_linked_but_is_no_evidence_and_no_reason_to_ignore_the_real_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    side = ledger.arrive(ask("b", HELLO + user("sum up"), session="s", kind=TurnKind.SIDE))
    assert (side.parent, side.to_judge) == ("a", None)
    assert ledger.arrive(ask("c", HELLO + user("sum up"), session="s")).to_judge is not None


@pytest.mark.parametrize("session", ["s", None])
def test_owners_never_meet_even_with_equal_sessions_and_equal_words(tmp_path: Path, session: str | None) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session=session, owner="alice")
    linked = ledger.arrive(ask("b", HELLO + user("thanks"), session=session, owner="bob"))
    assert (linked.parent, linked.to_judge) == (None, None)
    assert ledger.state(TurnId("a")) is TurnState.AWAITING_NEXT


def test_a_named_session_is_not_continued_from_another_name_nor_anonymously(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    assert ledger.arrive(ask("b", HELLO + user("x"), session="other")).parent is None
    assert ledger.arrive(ask("c", HELLO + user("x"))).parent is None
    assert ledger.state(TurnId("a")) is TurnState.AWAITING_NEXT


def test_a_client_may_name_the_session_that_it_was_given(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    given = say(ledger, "a", HI, "hello").session
    assert ledger.arrive(ask("b", HELLO + user("x"), session=given)).parent == "a"


def test_recording_an_unannounced_turn_links_it_and_hands_out_its_parents_case(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    talk = HELLO + user("and now?")
    recorded = say(ledger, "b", talk, "now this", session="s")
    assert (recorded.new, recorded.parent) == (True, "a")
    assert [case.turn_id for case in recorded.to_judge] == ["a"]
    announced = ask("c", talk + reply("now this") + user("ok"), session="s")
    assert ledger.arrive(announced).to_judge is not None
    assert ledger.record(serve(announced, talk, "fine")).to_judge == ()


@pytest.mark.parametrize("session", ["s", None])
def test_a_turn_that_is_recorded_after_its_follow_up_came_still_gets_its_evidence(
    tmp_path: Path, session: str | None
) -> None:
    ledger = open_ledger(tmp_path)
    late = ask("a", HI, session=session)
    ledger.arrive(late)
    assert ledger.arrive(ask("b", HELLO + user("thanks"), session=session, at=1_002.0)).parent is None
    recorded = ledger.record(serve(late, HI, "hello"))
    assert [(case.turn_id, case.evidence) for case in recorded.to_judge] == [("a", user("thanks"))]
    assert ledger.state(TurnId("a")) is TurnState.JUDGING
    assert ledger.arrive(ask("b", HELLO + user("thanks"), session=session)).parent == "a"


def test_a_late_turn_takes_no_evidence_from_a_request_older_than_itself_or_of_another_owner(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.arrive(ask("old", HELLO + user("x"), session="s", at=900.0))
    ledger.arrive(ask("foreign", HELLO + user("x"), session="s", owner="bob", at=1_002.0))
    ledger.arrive(ask("elsewhere", HELLO + user("x"), session="other", at=1_002.0))
    assert say(ledger, "a", HI, "hello", session="s").to_judge == ()
    assert ledger.state(TurnId("a")) is TurnState.AWAITING_NEXT


def test_ending_a_session_judges_the_parent_and_drops_whatever_else_waits(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    say(ledger, "loose", user("unrelated"), "yes", session="s")
    say(ledger, "other", HI, "hello", session="other")
    talk = HELLO + user("bye")
    last = ask("end", talk, session="s", ends=True)
    assert ledger.arrive(last).to_judge is not None
    assert ledger.state(TurnId("loose")) is TurnState.AWAITING_NEXT, "the session ends when its last turn is recorded"
    ledger.record(serve(last, talk, "bye"))
    assert ledger.state(TurnId("a")) is TurnState.JUDGING
    for turn_id in ("loose", "end"):
        assert ledger.turns(state=TurnState.DROPPED, session="s")[0].drop_reason is DropReason.SESSION_ENDED
        assert ledger.state(TurnId(turn_id)) is TurnState.DROPPED
    assert ledger.state(TurnId("other")) is TurnState.AWAITING_NEXT


def test_the_end_of_a_session_is_remembered_over_a_restart(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.arrive(ask("end", HI, session="s", ends=True))
    ledger.close()
    ledger = open_ledger(tmp_path)
    forgetful = ask("end", HI, session="s")
    ledger.record(serve(forgetful, HI, "bye"))
    assert ledger.counts().dropped == {DropReason.SESSION_ENDED: 1}


def test_a_dropped_last_turn_keeps_its_own_reason_and_still_ends_the_session(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    last = ask("end", user("cut"), session="s", ends=True, kind=TurnKind.SIDE)
    ledger.record(serve(last, user("cut"), "x"), DropReason.SIDE)
    assert ledger.counts().dropped == {DropReason.SESSION_ENDED: 1, DropReason.SIDE: 1}


def test_a_turn_is_still_linked_to_after_it_was_judged(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, Clock())
    say(ledger, "a", HI, "hello", session="s")
    ledger.arrive(ask("b", HELLO + user("x"), session="s"))
    ledger.judged(verdict("a"))
    linked = ledger.arrive(ask("c", HELLO + user("y"), session="s"))
    assert (linked.parent, linked.to_judge) == ("a", None)
    assert ledger.state(TurnId("a")) is TurnState.QUEUED
