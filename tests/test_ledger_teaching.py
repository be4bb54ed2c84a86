"""What a teacher says of a turn is kept bit for bit, and hints are remembered beyond it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.messages import DropReason, Judgement, TeacherTargets, TurnId, TurnState
from tests.ledger_kit import (
    ask,
    open_ledger,
    opinion,
    queue,
    reply,
    rows,
    say,
    taught,
    to_judging,
    user,
    verdict,
)

A = TurnId("a")


def assert_same(kept: TeacherTargets | None, given: TeacherTargets) -> None:
    assert kept is not None
    for name in ("logps", "topk_ids", "topk_logps"):
        one, other = getattr(kept, name), getattr(given, name)
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        assert one.flags.writeable, "whoever hands it to a tensor library wants to own it"
    assert (kept.hints, kept.teacher, kept.version) == (given.hints, given.teacher, given.version)


def hinted(turn_id: str, *hints: str, value: int | None = 1) -> Judgement:
    return replace(verdict(turn_id, value), hints=hints)


@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("hints", [("one",), ("a\nb", "héllo \ud83d 🦀")])
def test_targets_are_read_back_bit_for_bit_after_a_restart(tmp_path: Path, hints: tuple[str, ...], top_k: int) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    given = taught(hints, top_k)
    given.logps[0, 0] = -1e-38
    assert ledger.judged(verdict("a"), targets=given)
    ledger.close()
    assert_same(open_ledger(tmp_path).targets(A), given)


def test_targets_of_an_answer_without_tokens_keep_their_shape() -> None:
    codec = Codec(PlainVault())
    given = taught(tokens=0)
    assert_same(codec.unpack_targets("ann", codec.pack_targets("ann", given)), given)


def test_targets_that_would_have_to_be_cast_are_refused_whole(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    given = taught()
    wide = replace(given, logps=given.logps.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ledger.judged(verdict("a"), targets=wide)
    assert (ledger.state(A), ledger.judgement(A)) == (TurnState.JUDGING, None)


def test_targets_take_less_room_on_disk_than_in_memory() -> None:
    shape = (1, 256, 8)
    ids = np.tile(np.arange(8, dtype=np.int32), (1, 256, 1))
    even = TeacherTargets(
        hints=("x",),
        logps=np.full((1, 256), -0.5, np.float32),
        topk_ids=ids,
        topk_logps=np.full(shape, -2.0, np.float32),
        teacher="t",
    )
    packed = Codec(PlainVault()).pack_targets("ann", even)
    assert len(packed) < (even.logps.nbytes + even.topk_ids.nbytes + even.topk_logps.nbytes) / 4


def test_a_hint_can_teach_without_a_verdict(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a", "b")
    assert ledger.judged(verdict("a", None), targets=taught())
    assert ledger.judged(verdict("b", None))
    assert ledger.state(A) is TurnState.QUEUED
    assert TurnState.JUDGED in [t.target for t in ledger.transitions(A)]
    assert ledger.counts().dropped == {DropReason.JUDGE_ABSTAINED: 1}
    assert ledger.judge_stats().abstained == 2


def test_a_turn_that_was_taught_without_a_verdict_waits_while_submission_is_paused(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    ledger.pause("operator", "x")
    ledger.judged(verdict("a", None), targets=taught())
    assert ledger.state(A) is TurnState.JUDGED


@pytest.mark.parametrize("value", [1, None])
@pytest.mark.parametrize("targets", [taught(), None])
def test_a_drop_reason_stands_whatever_the_judge_and_the_teacher_said(
    tmp_path: Path, value: int | None, targets: TeacherTargets | None
) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    assert ledger.judged(verdict("a", value), DropReason.TEACHER_FAILED, targets)
    assert ledger.counts().dropped == {DropReason.TEACHER_FAILED: 1}


def test_a_second_judgement_brings_no_targets(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    queue(ledger, "a")
    assert not ledger.judged(verdict("a"), targets=taught())
    assert ledger.targets(A) is None
    assert ledger.targets(TurnId("ghost")) is None


def test_a_lease_carries_the_targets_of_the_turns_that_have_some(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    to_judging(ledger, "a")
    ledger.judged(verdict("a"), targets=taught())
    queue(ledger, "b")
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)
    assert lease is not None
    assert [lent.turn.turn_id for lent in lease.turns] == ["a", "b"]
    assert_same(lease.turns[0].teacher, taught())
    assert lease.turns[1].teacher is None


def test_the_reward_of_a_step_is_the_mean_over_the_turns_that_have_one(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    for turn_id, judgement in (
        ("a", verdict("a", 1)),
        ("b", replace(verdict("b", -1), feedback=-0.25)),
        ("c", verdict("c", None)),
    ):
        to_judging(ledger, turn_id)
        ledger.judged(judgement, targets=taught())
    for step, limit, expected in ((1, 2, 0.375), (2, 1, None)):
        lease = ledger.lease("run", step, limit, now=0.0, timeout_s=9.0)
        assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
        assert ledger.applied(lease.lease_id, "run", {})
        assert (ledger.steps()[0].turns, ledger.steps()[0].reward_mean) == (limit, expected)


def test_a_persons_score_is_read_back_with_the_judgement(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a")
    given = replace(verdict("a", -1), feedback=-0.75)
    ledger.judged(given)
    assert ledger.judgement(A) == given


def test_a_row_shows_reward_hints_and_whether_the_turn_was_taught(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    to_judging(ledger, "a", "b")
    ledger.judged(replace(hinted("a", "x", "y"), feedback=0.5), targets=taught())
    ledger.judged(hinted("b", value=-1))
    say(ledger, "c", user("hi"), "hello")
    shown = {row.turn_id: (row.reward, row.hints, row.taught) for row in ledger.turns()}
    assert shown == {"a": (0.5, 2, True), "b": (-1.0, 0, False), "c": (None, 0, False)}


def give(ledger: Ledger, turn_id: str, *hints: str, owner: str = "local") -> None:
    to_judging(ledger, turn_id, owner=owner)
    assert ledger.judged(hinted(turn_id, *hints))


def test_what_was_asked_for_often_comes_before_what_was_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(tmp_path)
    for turn_id, hint in (("a", "be brief"), ("b", "be brief"), ("c", "a whole sentence")):
        give(ledger, turn_id, hint)
    assert ledger.known_hints("local", None, 10) == ("be brief", "a whole sentence")
    monkeypatch.setattr("clawrl.ledger.hints.LATELY", 2)
    assert ledger.known_hints("local", None, 10) == ("a whole sentence", "be brief"), "equally often lately"
    give(ledger, "d", "a whole sentence")
    assert ledger.known_hints("local", None, 10) == ("a whole sentence",)


def test_hints_are_known_most_recently_confirmed_first_and_each_text_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    give(ledger, "a", "be brief", "use metric units")
    give(ledger, "b", "cite sources")
    give(ledger, "c", "be brief")
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.known_hints("local", None, 10) == ("be brief", "cite sources", "use metric units")
    assert ledger.known_hints("local", None, 2) == ("be brief", "cite sources")
    assert ledger.known_hints("local", "s-a", 10) == ("be brief", "use metric units")
    assert ledger.known_hints("local", "s-none", 10) == ()


def test_hints_that_were_given_together_keep_their_order(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    give(ledger, "a", "zz", "aaa", "mmmm")
    assert ledger.known_hints("local", "s-a", 10) == ("zz", "aaa", "mmmm")


def test_a_hint_is_renewed_in_its_own_session_only(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    give(ledger, "a", "first", "second")
    give(ledger, "b", "second")
    assert ledger.known_hints("local", None, 10) == ("second", "first")
    assert ledger.known_hints("local", "s-a", 10) == ("first", "second")


def test_one_owner_never_sees_the_hints_of_another(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    give(ledger, "a", "for ann", owner="ann")
    give(ledger, "b", "for bob", owner="bob")
    assert ledger.known_hints("ann", None, 10) == ("for ann",)
    assert ledger.known_hints("bob", None, 10) == ("for bob",)
    assert ledger.known_hints("bob", "s-a", 10) == ()


def test_a_judgement_that_is_ignored_teaches_no_hint_and_one_that_abstains_does(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    queue(ledger, "a")
    assert not ledger.judged(hinted("a", "too late"))
    to_judging(ledger, "b")
    ledger.judged(hinted("b", "still true", value=None))
    assert ledger.known_hints("local", None, 10) == ("still true", "be brief")


def test_a_withdrawn_judgement_takes_its_hints_along_unless_another_turn_confirms_them(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    talk = user("hi")
    for turn_id in ("a", "b"):
        say(ledger, turn_id, talk, "hello", session="s")
        talk += reply("hello") + user("hm")
    ledger.arrive(ask("next", talk, session="s"))
    ledger.judged(hinted("a", "wrong", "shared"))
    ledger.judged(hinted("b", "shared", "right"))
    ledger.feedback(opinion("a", 1.0))
    assert ledger.known_hints("local", "s", 10) == ("shared", "right")
    ledger.judged(replace(hinted("a", "new"), feedback=1.0), feedback_at=5.0)
    ledger.feedback(opinion("b", 1.0))
    assert ledger.known_hints("local", "s", 10) == ("new",)
    assert ledger.known_hints("local", None, 10) == ("new",)


def test_a_hint_outlives_the_turn_that_it_was_made_for(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, keep_finished_turns=1)
    to_judging(ledger, "a", "b")
    ledger.judged(hinted("a", "kept"), DropReason.TOO_SHORT)
    ledger.judged(hinted("b"), DropReason.TOO_SHORT)
    assert ledger.prune() == 1 and ledger.turn(A) is None
    assert ledger.known_hints("local", None, 10) == ("kept",)


def test_a_hint_that_many_turns_confirm_leaves_room_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.hints.KEEP_HINTS", 2)
    monkeypatch.setattr("clawrl.ledger.hints.KEEP_CONFIRMATIONS", 3)
    ledger = open_ledger(tmp_path)
    talk = user("hi")
    for i in range(6):
        say(ledger, f"t{i}", talk, "hello", session="s")
        talk += reply("hello") + user("hm")
        ledger.arrive(ask(f"n{i}", talk, session="s"))
        ledger.judged(hinted(f"t{i}", "rare" if i == 0 else "often"))
    assert ledger.known_hints("local", "s", 10) == ("often", "rare")
    assert rows(ledger, "hints") == 4


def test_the_hints_of_an_owner_are_bounded_and_the_oldest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.hints.KEEP_HINTS", 3)
    ledger = open_ledger(tmp_path)
    give(ledger, "other", "kept", owner="bob")
    give(ledger, "a", "one", "two")
    give(ledger, "b", "three")
    give(ledger, "c", "one")
    give(ledger, "d", "four", "five")
    # "one" of session s-a and "two" are the oldest, then "three"; "one" of session s-c is younger.
    assert ledger.known_hints("local", None, 10) == ("four", "five", "one")
    assert ledger.known_hints("bob", None, 10) == ("kept",)
