"""Forgetting: what is left on disk, of what is on its way, in a lease, in a step; and that every turn stays counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.reach import holding
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.messages import DropReason, PolicyVersion, Turn, TurnId, TurnState
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.forgetting import Wanted, forget, resume, run_steps
from clawrl.privacy.keys import KeyGone, KeyStore
from clawrl.privacy.opening import open_keys
from clawrl.privacy.vault import LedgerVault
from tests.ledger_kit import ids, opinion, queue, reply, rows, take_step, taught, to_judging, user, verdict
from tests.privacy_kit import IDS, SECRET, found_in, opened, said

PRIVATE = ("arrivals", "payloads", "evidence", "judgements", "targets", "feedback", "hints")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def forgotten(ledger: Ledger, **named: str) -> dict:  # type: ignore[type-arg]
    report = run_steps(ledger, forget(Wanted(**named)))  # type: ignore[arg-type]
    assert ledger.counts().adds_up
    return report


def conversation(ledger: Ledger, owner: str, session: str, turns: int = 3, text: str = SECRET) -> list[str]:
    """Each answer but the last has its evidence, and the first one is judged."""
    talk, names = user(f"{text} 0"), []
    for number in range(turns):
        names.append(f"{owner}-{session}-{number}")
        turn = said(names[-1], talk, f"{text} answered", owner=owner, session=session)
        ledger.arrive(turn.arrival)
        ledger.record(turn)
        talk = (*talk, *reply(f"{text} answered"), *user(f"{text} {number + 1}"))
    ledger.judged(verdict(names[0]))
    return names


def test_a_forgotten_user_leaves_nothing_and_the_others_all(state: Path) -> None:
    keys = open_keys(state, PrivacyConfig())
    ledger = opened(state, keys)
    conversation(ledger, "ann", "s")
    conversation(ledger, "bob", "s", text="the weather")
    ledger.feedback(opinion("ann-s-0", -1.0, SECRET))
    backup = state.with_name("backup")
    ledger.close()
    shutil.copytree(state, backup)
    ledger = opened(state, keys)
    report = forgotten(ledger, owner="ann")
    assert (report["found"], report["turns"], report["dropped"], report["keys_deleted"]) == (True, 3, 3, 1)
    assert report["steps"] == [] and report["log_emptied"]
    assert ledger.counts().dropped == {DropReason.FORGOTTEN: 3} and ledger.counts().recorded == 6
    assert {row.owner for row in ledger.turns()} == {"bob", "forgotten"}
    assert [row.session for row in ledger.turns() if row.owner == "forgotten"] == [""] * 3
    bob = ledger.turn(TurnId("bob-s-2"))
    assert bob is not None and bob.response_text == "the weather answered"
    ledger.close()
    assert (state / "ledger.sqlite-wal").exists() is False or (state / "ledger.sqlite-wal").stat().st_size == 0
    assert found_in(state, SECRET, IDS) == []
    # The backup has the rows and no key opens them any more.
    vault = LedgerVault(KeyStore(keys.folder))
    with Ledger(backup / "ledger.sqlite", LedgerConfig()) as old:
        for row in old._db.rows("SELECT owner, new_messages FROM arrivals WHERE owner = 'ann'"):
            with pytest.raises(KeyGone):
                vault.unseal(row["owner"], row["new_messages"])


def test_deleted_rows_are_overwritten_even_where_nothing_is_sealed(state: Path) -> None:
    ledger = opened(state, encrypt=False)
    conversation(ledger, "ann", "s", turns=6)
    assert found_in(state, SECRET, IDS) != []
    forgotten(ledger, owner="ann")
    assert found_in(state, SECRET, IDS) == [], "neither in free pages nor in the log, while the ledger is open"
    assert found_in(state, "ann-s", ()) != [], "the ids of turns stay"


def test_a_session_is_forgotten_and_its_owner_is_not(state: Path) -> None:
    ledger = opened(state)
    for owner, session in (("ann", "s"), ("ann", "t"), ("bob", "s")):
        conversation(ledger, owner, session, text=f"{owner} {session}")
    assert forgotten(ledger, owner="ann", session="s")["turns"] == 3
    assert ledger.known_hints("ann", "s", 5) == () and ledger.known_hints("ann", "t", 5) == ("be brief",)
    assert ledger.turn(TurnId("ann-t-0")).response_text == "ann t answered"  # type: ignore[union-attr]
    assert ledger.turn(TurnId("bob-s-0")).response_text == "bob s answered"  # type: ignore[union-attr]
    assert forgotten(ledger, session="s")["turns"] == 3, "without an owner it is everybody's"
    assert not forgotten(ledger, session="s")["found"]
    assert not forgotten(ledger, session="no such")["found"]


def test_a_turn_goes_with_all_that_repeats_it(state: Path) -> None:
    ledger = opened(state, encrypt=False)
    first, second, third = user("hello"), (*user("hello"), *reply("yes?"), *user(SECRET)), ()
    ledger.record(said("a", first, "yes?", session="s"))
    ledger.record(said("b", second, "I see", session="s", at=1_001.0))
    third = (*second, *reply("I see"), *user("more"))
    ledger.record(said("c", third, "go on", session="s", at=1_002.0))
    ledger.judged(verdict("a"), None, taught(tokens=len(IDS)))
    assert [row.state for row in reversed(ledger.turns())] == ["queued", "judging", "awaiting_next"]
    report = forgotten(ledger, turn_id="b")
    assert (report["turns"], report["dropped"], report["evidence_of"]) == (2, 2, 1)
    assert found_in(state, SECRET) == []
    before = ledger.turn(TurnId("a"))
    assert before is not None and before.response_text == "yes?", "what came before it keeps its own words"
    assert [row.drop_reason for row in ledger.turns()] == [DropReason.FORGOTTEN] * 3, "and trains no more"
    assert rows(ledger, "hints") == rows(ledger, "targets") == rows(ledger, "evidence") == 0
    assert not forgotten(ledger, turn_id="b")["found"]
    assert not forgotten(ledger, turn_id="no such")["found"]


def test_an_answer_that_a_person_spoke_of_is_judged_by_what_is_said_after_the_forgetting(state: Path) -> None:
    """It was dropped for want of an opinion: nothing was learned from it, and its own words are not forgotten."""
    ledger = opened(state, encrypt=False)
    ledger.record(said("a", user("hello"), "yes?", session="s"))
    second = (*user("hello"), *reply("yes?"), *user(SECRET))
    assert ledger.record(said("b", second, "I see", session="s", at=1_001.0)).to_judge
    ledger.judged(verdict("a", 0), DropReason.NEUTRAL)
    assert ledger.feedback(opinion("a", 0.5, "polite", at=1_002.0)).to_judge is not None  # type: ignore[union-attr]
    assert ledger.judged(verdict("a", 0), DropReason.NEUTRAL, feedback_at=1_002.0)
    assert forgotten(ledger, turn_id="b")["evidence_of"] == 1
    after = (*user("hello"), *reply("yes?"), *user("thank you"))
    (case,) = ledger.record(said("c", after, "bye", session="s", at=9e9)).to_judge
    assert case.turn_id == "a" and [said.content for said in case.evidence] == ["thank you", "polite"]
    assert found_in(state, SECRET) == []


def answered_late(ledger: Ledger, turn: Turn) -> None:
    ledger.record(turn)
    row = next(row for row in ledger.turns() if row.turn_id == turn.turn_id)
    assert (row.state, row.drop_reason, row.owner) == (TurnState.DROPPED, DropReason.FORGOTTEN, "forgotten")
    kept = ledger.turn(turn.turn_id)
    assert kept is not None and kept.response_text == "" and kept.arrival.messages == () and len(kept.prompt_ids) == 0
    assert ledger.counts().adds_up


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "not announced"])
@pytest.mark.parametrize("named", ["owner", "session", "anonymous"])
def test_an_answer_that_was_being_written_leaves_nothing_but_its_count(
    state: Path, announced: bool, named: str
) -> None:
    ledger = opened(state)
    session = None if named == "anonymous" else "s"
    if named == "anonymous" and not announced:
        pytest.skip("nobody can know what it belongs to")
    ledger.record(said("first", user("hi"), "hello", session=session))
    late = said("late", (*user("hi"), *reply("hello"), *user(SECRET)), SECRET, session=session)
    if announced:
        ledger.arrive(late.arrival)
    wanted = {"owner": "ann"} if named == "owner" else {"session": ledger.turns()[0].session}
    report = forgotten(ledger, **wanted)
    assert report["unanswered"] == announced
    assert ledger.arrive(late.arrival).to_judge is None
    answered_late(ledger, late)
    assert not ledger.record(late).new
    ledger.close()
    assert found_in(state, SECRET, IDS) == []


def test_who_comes_back_afterwards_is_recorded_again(state: Path) -> None:
    ledger = opened(state)
    conversation(ledger, "ann", "s")
    forgotten(ledger, owner="ann")
    ledger.record(said("later", user("hello again"), "hi", session="s", at=9e9))
    kept = ledger.turn(TurnId("later"))
    assert kept is not None and kept.response_text == "hi" and kept.arrival.owner == "ann"


def to_queue(ledger: Ledger, *names: str, owner: str = "ann") -> None:
    queue(ledger, *names, owner=owner)


def test_a_lease_that_holds_it_is_void_and_the_fence_refuses_the_batch(state: Path) -> None:
    ledger = opened(state)
    to_queue(ledger, "a")
    to_queue(ledger, "b", owner="bob")
    ledger.restored("run", 0)
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=60.0)
    assert lease is not None and ids(lease) == ["a", "b"]
    report = forgotten(ledger, owner="ann")
    assert report["leases_voided"] == 1 and report["steps"] == []
    assert not ledger.confirm(lease.lease_id, "run", 1.0)
    assert ledger.state(TurnId("a")) is TurnState.DROPPED
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=60.0, minimum=1)) == ["b"], "the others are lent again"


def test_a_step_that_is_being_taken_is_told_of_and_keeps_its_count(state: Path) -> None:
    ledger = opened(state)
    to_queue(ledger, "a")
    to_queue(ledger, "b", owner="bob")
    ledger.restored("run", 0)
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    assert forgotten(ledger, owner="ann")["steps"] == [1]
    assert ledger.applied(lease.lease_id, "run", {})
    assert ledger.checkpointed("run", 1)
    assert ledger.counts().by_state[TurnState.TRAINED] == 2
    assert ledger.steps()[0].turns == 2


def test_a_step_that_is_asked_for_again_is_made_without_it(state: Path) -> None:
    ledger = opened(state)
    to_queue(ledger, "a")
    to_queue(ledger, "b", owner="bob")
    ledger.restored("run", 0)
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    forgotten(ledger, owner="ann")
    assert ids(ledger.lease("run", 1, 2, now=0.0, timeout_s=60.0)) == ["b"]
    assert ledger.applied(lease.lease_id, "run", {})
    assert ledger.state(TurnId("a")) is TurnState.DROPPED and ledger.steps()[0].turns == 1


def test_a_step_of_which_nothing_is_left_is_made_of_others_under_another_lease(state: Path) -> None:
    ledger = opened(state)
    to_queue(ledger, "a")
    ledger.restored("run", 0)
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    to_queue(ledger, "b", owner="bob")
    forgotten(ledger, owner="ann")
    other = ledger.lease("run", 1, 1, now=0.0, timeout_s=60.0)
    assert ids(other) == ["b"] and other is not None and other.lease_id != lease.lease_id
    assert not ledger.confirm(lease.lease_id, "run", 1.0) and not ledger.applied(lease.lease_id, "run", {})
    assert ledger.confirm(other.lease_id, "run", 1.0) and ledger.applied(other.lease_id, "run", {})


def test_what_was_trained_is_told_with_its_steps_and_versions_and_is_not_trained_again(state: Path) -> None:
    ledger = opened(state)
    ledger.restored("run", 0)
    for step, owner in enumerate(["ann", "bob", "ann"], start=1):
        to_queue(ledger, f"t{step}", owner=owner)
        take_step(ledger, "run", step, 1)
        ledger.commit_version(PolicyVersion(version=step, step=step, snapshot="s", digest=str(step), published_at=0.0))
    ledger.checkpointed("run", 3)
    report = forgotten(ledger, owner="ann")
    assert (report["turns"], report["dropped"]) == (2, 0)
    assert (report["steps"], report["versions"]) == ([1, 3], [1, 2, 3])
    assert ledger.counts().by_state == {TurnState.TRAINED: 3, **_left(ledger)}
    # An older checkpoint is restored: bob's turn trains again, ann's cannot.
    ledger.restored("again", 1)
    assert ledger.state(TurnId("t1")) is TurnState.TRAINED
    assert ledger.state(TurnId("t2")) is TurnState.QUEUED
    assert ledger.state(TurnId("t3")) is TurnState.DROPPED
    assert ledger.counts().dropped[DropReason.FORGOTTEN] == 1 and ledger.counts().adds_up


def _left(ledger: Ledger) -> dict[TurnState, int]:
    return {state: n for state, n in ledger.counts().by_state.items() if state is not TurnState.TRAINED}


def test_steps_of_turns_that_were_pruned_long_ago_are_still_told_of_a_user(state: Path) -> None:
    ledger = opened(state, ledger={"keep_finished_turns": 1, "keep_trained_steps": 0})
    ledger.restored("run", 0)
    for step in (1, 2, 3):
        to_queue(ledger, f"t{step}")
        take_step(ledger, "run", step, 1)
    ledger.checkpointed("run", 3)
    assert ledger.prune() == 2
    assert forgotten(ledger, owner="ann")["steps"] == [1, 2, 3]
    assert rows(ledger, "trained_on") == 0


@pytest.mark.parametrize("keep", [0, 1, 100])
def test_steps_of_turns_whose_text_expired_are_still_told_of_a_user(state: Path, keep: int) -> None:
    ledger = opened(state, ledger={"keep_trained_steps": keep})
    ledger.restored("run", 0)
    for step in (1, 2, 3):
        to_queue(ledger, f"t{step}")
        take_step(ledger, "run", step, 1)
    ledger.checkpointed("run", 3)
    # Step 3 is undone, and what it learned from expires as a turn that was dropped.
    ledger.restored("again", 2)
    lease = ledger.lease("again", 3, 1, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.drop_leased(lease.lease_id, TurnId("t3"), DropReason.MALFORMED)
    now = max(row.state_at for row in ledger.turns())
    while ledger.expire_text(now + 1.0):
        pass
    report = forgotten(ledger, owner="ann")
    assert report["found"] and report["steps"] == [1, 2, 3]
    assert rows(ledger, "trained_on") == 0


def test_what_was_dropped_before_becomes_a_count(state: Path) -> None:
    ledger = opened(state)
    ledger.record(said("a", user(SECRET), "x"), DropReason.GREEDY)
    assert forgotten(ledger, owner="ann")["turns"] == 1
    assert ledger.turns() == [] and ledger.counts().dropped == {DropReason.GREEDY: 1}
    assert all(rows(ledger, table) == 0 for table in PRIVATE)


def test_a_judge_that_answers_too_late_brings_nothing_back(state: Path) -> None:
    ledger = opened(state)
    to_judging(ledger, "a", owner="ann")
    forgotten(ledger, owner="ann")
    assert not ledger.judged(verdict("a"))
    assert ledger.awaiting_judgement() == [] and rows(ledger, "hints") == 0
    assert ledger.feedback(opinion("a", 1.0)).to_judge is None  # type: ignore[union-attr]


@pytest.mark.parametrize("after", range(6))
def test_a_crash_at_any_step_is_finished_by_the_restart(state: Path, after: int) -> None:
    keys = open_keys(state, PrivacyConfig())
    ledger = opened(state, keys)
    conversation(ledger, "ann", "s")
    steps, answer, done = forget(Wanted(owner="ann")), None, False
    for _ in range(after):
        try:
            answer = steps.send(answer).run(ledger)
        except StopIteration:
            done = True
            break
    ledger.close()
    ledger = opened(state, KeyStore(keys.folder))
    run_steps(ledger, resume())
    assert ledger.forgetting_under_way() == []
    if after or done:
        assert KeyStore(keys.folder).existing("ann") is None
        assert [row.owner for row in ledger.turns()] == ["forgotten"] * 3
        assert found_in(state, SECRET, IDS) == []
    assert ledger.counts().adds_up and ledger.counts().recorded == 3


def test_more_than_a_batch_is_forgotten_and_serving_goes_on_between(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.forgetting.BATCH", 2)
    ledger = opened(state)
    conversation(ledger, "ann", "s", turns=7)
    steps, answer, ran = forget(Wanted(owner="ann")), None, 0
    while True:
        try:
            answer = steps.send(answer).run(ledger)
        except StopIteration as end:
            report = end.value
            break
        ran += 1
        ledger.record(said(f"other{ran}", user(f"{ran}"), "x", owner="bob"))
        assert ledger.counts().adds_up
    assert report["turns"] == 7 and ran > 6


def test_text_goes_when_its_time_is_over_and_the_counts_stay(state: Path) -> None:
    ledger = opened(state, ledger={"keep_trained_steps": 1})
    ledger.restored("run", 0)
    for step in (1, 2, 3):
        to_queue(ledger, f"t{step}")
        take_step(ledger, "run", step, 1)
    ledger.checkpointed("run", 3)
    ledger.record(said("dropped", user(SECRET), SECRET), DropReason.GREEDY)
    ledger.record(said("waits", user("hi"), "still here"))
    before = ledger.counts()
    now = max(row.state_at for row in ledger.turns())
    assert ledger.expire_text(now - 3600.0) == 0
    while ledger.expire_text(now + 1.0):
        pass
    assert ledger.counts() == before and ledger.counts().adds_up
    assert ledger.turn(TurnId("dropped")) is None and ledger.turn(TurnId("t1")) is None
    kept = ledger.turn(TurnId("t3"))
    assert kept is not None and kept.response_text == "", "a checkpoint without its step may yet be restored"
    assert ledger.turn(TurnId("waits")).response_text == "still here"  # type: ignore[union-attr]
    assert rows(ledger, "hints") == 0
    ledger.restored("again", 2)
    assert ledger.counts().dropped[DropReason.FORGOTTEN] == 1


def test_which_versions_hold_a_step_minds_roll_backs() -> None:
    def version(number: int, step: int, **stats: int) -> PolicyVersion:
        return PolicyVersion(version=number, step=step, snapshot="", digest="", published_at=0.0, stats=stats)

    known = [
        version(0, 0),
        version(1, 1),
        version(2, 2),
        version(3, 3),
        version(4, 1, rolled_back_to=1, **{REWOUND_AT: 4}),
        version(5, 5),
    ]
    assert holding(known, {1}) == [1, 2, 3, 4, 5]
    assert holding(known, {2}) == [2, 3]
    assert holding(known, {3, 4}) == [3], "a step that was taken and never published is in none"
    assert holding(known, {5}) == [5]
    assert holding(known, set()) == []
