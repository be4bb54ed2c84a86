"""Who does not want to be learned from: by header, by session, by key. Nothing of theirs trains, and all is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clawrl.actors.generation import tasks_for
from clawrl.ledger import Ledger, permission
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.ledger.journal import Journal, read
from clawrl.ledger.screening import AsItIs, for_a_journal
from clawrl.messages import DropReason, SamplingParams, Turn, TurnId, TurnKind, TurnState
from clawrl.privacy.forgetting import Wanted, forget, run_steps
from clawrl.serving.auth import KeyRing
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import ApiError
from clawrl.serving.request import ModelRequest
from clawrl.serving.sessions import session_facts
from tests.ledger_kit import reply, rows, user
from tests.privacy_kit import IDS, SECRET, found_in, opened, said


@pytest.mark.parametrize(
    ("value", "wish"),
    [("no", False), (" NO ", False), ("off", False), ("0", False), ("yes", True), ("True", True), ("", None)],
)
def test_the_header_says_yes_or_no(value: str, wish: bool | None) -> None:
    assert session_facts({"x-clawrl-train": value}, {}, TurnKind.MAIN).train is wish


def test_a_header_that_says_something_else_is_refused_and_not_guessed() -> None:
    with pytest.raises(ApiError, match=r"X-Clawrl-Train.*Send yes or no"):
        session_facts({"X-Clawrl-Train": "nope"}, {}, TurnKind.MAIN)


@pytest.mark.parametrize(("key", "wish", "may"), [(True, None, True), (True, False, False), (False, True, False)])
def test_a_key_that_forbids_it_outranks_a_header_that_allows_it(key: bool, wish: bool | None, may: bool) -> None:
    headers = {} if wish is None else {"X-Clawrl-Train": "yes" if wish else "no"}
    facts = session_facts(headers, {}, TurnKind.MAIN)
    wanted = ModelRequest(model="m", messages=user("hi"), sampling=SamplingParams(), facts=facts)
    (task,) = tasks_for(wanted, "ann", 1.0, may_train=key)
    assert (task.arrival.may_train, task.arrival.train_wish) == (may, wish)


def test_a_key_says_whether_its_person_may_be_learned_from() -> None:
    users = [{"name": "ann", "key": "k-ann", "train": False}, {"name": "bob", "key": "k-bob"}]
    config = ServingConfig.model_validate({"served_name": "m", "api_key": "op", "users": users, "train": False})
    ring = KeyRing(config, {})
    may = {name: ring.identify({"x-api-key": key}).may_train for name, key in (("ann", "k-ann"), ("bob", "k-bob"))}
    assert may == {"ann": False, "bob": True} and not ring.identify({"x-api-key": "op"}).may_train
    assert not KeyRing(ServingConfig(served_name="m", train=False), {}).identify({}).may_train


def speak(ledger: Ledger, name: str, talk: Any, text: str, wish: bool | None, session: str | None) -> Turn:
    turn = said(name, talk, text, session=session)
    arrival = replace(turn.arrival, train_wish=wish, may_train=wish is not False)
    turn = replace(turn, arrival=arrival)
    ledger.arrive(arrival)
    ledger.record(turn)
    return turn


@pytest.mark.parametrize("session", ["s", None], ids=["named", "anonymous"])
def test_a_no_holds_for_the_session_until_a_yes(tmp_path: Path, session: str | None) -> None:
    ledger = opened(tmp_path / "state")
    talk = user("0")
    for number, wish in enumerate([None, False, None, None, True, None]):
        speak(ledger, f"t{number}", talk, f"answer {number}", wish, session)
        talk = (*talk, *reply(f"answer {number}"), *user(f"{number + 1}"))
    reasons = [row.drop_reason for row in reversed(ledger.turns())]
    assert reasons == [None, *[DropReason.NOT_PERMITTED] * 3, None, None]
    assert len({row.session for row in ledger.turns()}) == 1
    assert ledger.counts().adds_up
    other = said("other", user("hello"), "x", session="another")
    ledger.record(other)
    assert ledger.state(TurnId("other")) is TurnState.AWAITING_NEXT, "of that session, not of its owner"


def test_what_was_said_with_a_no_is_no_evidence_for_the_answer_before(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state")
    speak(ledger, "a", user("hi"), "hello", None, "s")
    speak(ledger, "b", (*user("hi"), *reply("hello"), *user("wrong!")), "sorry", False, "s")
    assert ledger.awaiting_judgement() == [] and ledger.state(TurnId("a")) is TurnState.AWAITING_NEXT


def test_it_is_so_after_a_restart_and_whatever_the_turns_own_copy_says(tmp_path: Path) -> None:
    speak(first := opened(tmp_path / "state"), "a", user("hi"), "hello", False, "s")
    first.close()
    ledger = opened(tmp_path / "state")
    speak(ledger, "b", user("more"), "hello", None, "s")
    assert [row.drop_reason for row in ledger.turns()] == [DropReason.NOT_PERMITTED] * 2


def test_without_a_record_of_them_not_a_word_is_stored_and_the_session_holds_together(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", encrypt=False, record_untrainable=False)
    speak(ledger, "a", user(SECRET), f"{SECRET}!", False, "s")
    follows = (*user(SECRET), *reply(f"{SECRET}!"), *user(SECRET))
    assert speak(ledger, "b", follows, SECRET, None, "s") and ledger.turns()[0].parent == "a"
    kept = ledger.turn(TurnId("b"))
    assert kept is not None and kept.arrival.messages == () and kept.withheld == "all"
    assert [(row.drop_reason, row.response_tokens) for row in ledger.turns()] == [
        (DropReason.NOT_PERMITTED, len(IDS)),
        (DropReason.NOT_PERMITTED, len(IDS)),
    ]
    ledger.close()
    assert found_in(tmp_path, SECRET, IDS) == []


def test_a_journal_keeps_no_word_of_them_either(tmp_path: Path) -> None:
    codec = Codec(PlainVault())

    def ready(turn: Turn) -> Turn:
        return for_a_journal(turn, AsItIs(), keeps_untrainable=False)

    journal = Journal(tmp_path / "x.journal", codec, limit_bytes=10_000, ready=ready)
    turn = said("a", user(SECRET), SECRET, session="s")
    journal.append(replace(turn, arrival=replace(turn.arrival, train_wish=False, may_train=False)))
    assert found_in(tmp_path, SECRET, IDS) == []
    ledger = opened(tmp_path / "state", record_untrainable=False)
    for late in read(journal.path, codec).turns:
        ledger.record(late)
    assert ledger.turns()[0].drop_reason is DropReason.NOT_PERMITTED
    follows = said("b", (*user(SECRET), *reply(SECRET), *user("x")), "y", session="s")
    ledger.record(follows)
    assert ledger.turns()[0].drop_reason is DropReason.NOT_PERMITTED, "the wish holds from the journal on"


WHO = [Wanted(owner="ann"), Wanted(owner="ann", session="s"), Wanted(session="s")]


@pytest.mark.parametrize("wanted", WHO, ids=["user", "session", "session of all"])
def test_who_is_forgotten_has_still_said_no(tmp_path: Path, wanted: Wanted) -> None:
    ledger = opened(tmp_path / "state")
    speak(ledger, "a", user("hi"), "hello", False, "s")
    run_steps(ledger, forget(wanted))
    assert ledger._db.scalar("SELECT count(*) FROM opted_out WHERE owner = 'ann' OR session = 's'") == 0
    ledger.close()
    ledger = opened(tmp_path / "state")
    for number, wish in enumerate([None, None, True, None]):
        turn = said(f"again{number}", user("hi", str(number)), "hello", session="s", at=9e9 + number)
        ledger.record(replace(turn, arrival=replace(turn.arrival, train_wish=wish)))
    assert [row.drop_reason for row in reversed(ledger.turns())] == [DropReason.NOT_PERMITTED] * 2 + [None] * 2
    assert rows(ledger, "opted_out") == 0, "a yes lifts it"
    ledger.record(said("other", user("hi"), "hello", session="t", at=9e9))
    assert ledger.state(TurnId("other")) is TurnState.AWAITING_NEXT


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "from a journal"])
def test_a_no_that_comes_after_its_session_was_forgotten_still_holds(tmp_path: Path, announced: bool) -> None:
    ledger = opened(tmp_path / "state")
    ledger.record(said("a", user("hi"), "hello", session="s"))
    run_steps(ledger, forget(Wanted(owner="ann", session="s")))
    late = said("late", user("hi"), "hello", session="s", at=1_001.0)
    late = replace(late, arrival=replace(late.arrival, train_wish=False, may_train=False))
    if announced:
        ledger.arrive(late.arrival)
    else:
        ledger.record(late)
    ledger.record(said("again", user("hi"), "hello", session="s", at=9e9))
    assert ledger.turns()[0].drop_reason is DropReason.NOT_PERMITTED


def aged(ledger: Ledger) -> list[float]:
    now = [1_000.0]
    ledger._db.clock = lambda: now[0]
    return now


def test_the_wish_of_a_session_without_a_name_goes_with_its_last_turn(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", ledger={"keep_finished_turns": 10, "idle_timeout_s": 50.0})
    now = aged(ledger)
    for number in range(30):
        speak(ledger, f"t{number}", user(f"hi {number}"), "hello", False, None)
    announced = said("never answered", user("hello"), "", session=None).arrival
    ledger.arrive(replace(announced, train_wish=False))
    assert rows(ledger, "opted_out") == 31
    now[0] += 100.0
    ledger.sweep(now[0])
    while ledger.prune():
        pass
    assert rows(ledger, "turns") == rows(ledger, "opted_out") == 10


def test_the_wish_of_a_named_session_outlives_its_turns_by_a_time_and_is_renewed(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", ledger={"keep_finished_turns": 1})
    now = aged(ledger)
    speak(ledger, "a", user("hi"), "hello", False, "s")
    speak(ledger, "b", user("hi"), "hello", False, "t")
    now[0] += permission.KEEP_S - 10.0
    speak(ledger, "c", user("hello"), "hello", None, "s")
    now[0] += 20.0
    for name in ("d", "e"):
        speak(ledger, name, user(name), "hello", False, "u")
    while ledger.prune():
        pass
    assert rows(ledger, "turns") == 1, "of the session u"
    assert rows(ledger, "opted_out") == 2, "that of t is too old, and it has no turns"
    speak(ledger, "f", user("hello again"), "hello", None, "s")
    assert ledger.turns()[0].drop_reason is DropReason.NOT_PERMITTED
    now[0] += 2 * permission.KEEP_S
    ledger.prune()
    assert rows(ledger, "opted_out") == 2, "as long as there is a turn of it"


def test_the_wishes_of_sessions_without_turns_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "MOST", 3)
    ledger = opened(tmp_path / "state", ledger={"keep_finished_turns": 1})
    now = aged(ledger)
    for number in range(6):
        now[0] += 1.0
        speak(ledger, f"t{number}", user("hi"), "hello", False, f"s{number}")
    while ledger.prune():
        pass
    kept = {row["session"] for row in ledger._db.rows("SELECT session FROM opted_out")}
    assert kept == {"s3", "s4", "s5"}
