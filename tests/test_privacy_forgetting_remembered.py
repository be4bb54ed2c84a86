"""What is remembered of a forgetting: its interval, under the names of then and of now, for as long as it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from clawrl.messages import DropReason, TurnId
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.forgetting import Wanted, forget, resume, run_steps
from clawrl.privacy.opening import open_keys
from tests.forgetting_kit import now, stepwise
from tests.ledger_kit import ask, rows, user
from tests.privacy_kit import PRIVATE_RULES, SECRET, opened, said

DAY_S = 86_400.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_what_was_said_between_two_forgotten_turns_of_a_session_stays(state: Path) -> None:
    ledger = opened(state)
    ledger.record(said("first", user("x"), "r", session="s", at=now(ledger)))
    assert run_steps(ledger, forget(Wanted(turn_id=TurnId("first"))))["turns"] == 1
    between = said("between", user("unrelated"), "answer", session="s", at=now(ledger))
    ledger.record(said("second", user("z"), "r", session="s", at=now(ledger)))
    assert run_steps(ledger, forget(Wanted(turn_id=TurnId("second"))))["turns"] == 1
    ledger.record(between)  # out of a journal
    assert ledger.turn(TurnId("between")).response_text == "answer"  # type: ignore[union-attr]
    early = said("early", user("z"), "r", session="s", at=between.arrival.arrived_at - 3600.0)
    ledger.record(early)
    assert ledger.turn(TurnId("early")).response_text == "r", "before the first"  # type: ignore[union-attr]


def test_a_crash_in_the_second_forgetting_does_not_widen_the_first(state: Path) -> None:
    ledger = opened(state)
    at = now(ledger)
    for number, name in enumerate(("a", "b", "c")):
        ledger.record(said(name, user(name), "r", session="s", at=at - 100.0 + number))
    run_steps(ledger, forget(Wanted(turn_id=TurnId("c"))))
    for name in ("d", "e"):
        ledger.record(said(name, user(name), "r", session="s", at=now(ledger)))
    ledger.begin_forgetting(turn_id=TurnId("e"))
    run_steps(ledger, resume())
    kept = {row.turn_id for row in ledger.turns() if row.owner == "ann"}
    assert kept == {"a", "b", "d"}


def test_a_session_of_a_user_that_is_only_in_a_journal_is_forgotten(state: Path) -> None:
    ledger = opened(state)
    late = said("late", user(SECRET), SECRET, session="s", at=now(ledger))
    other = said("other", user("hello"), "hi", session="t", at=now(ledger))
    assert not run_steps(ledger, forget(Wanted(owner="ann", session="s")))["found"]
    ledger.record(late)
    ledger.record(other)
    by_id = {row.turn_id: row.drop_reason for row in ledger.turns()}
    assert by_id == {"late": DropReason.FORGOTTEN, "other": None}


def test_a_ledger_of_an_early_format_4_keeps_what_it_remembers(state: Path) -> None:
    ledger = opened(state)
    who = ledger._db.codec.pseudonym("owner", "ann")
    for statement in (
        "DROP TABLE forgettings",
        "CREATE TABLE forgotten (who TEXT PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL, owner TEXT,"
        " session TEXT) WITHOUT ROWID",
        f"INSERT INTO forgotten VALUES ('{who}', 0, {now(ledger)}, NULL, NULL), ('x', 0, {now(ledger)}, 'bob', NULL)",
    ):
        ledger._db.execute(statement)
    ledger.close()
    ledger = opened(state)
    ledger.record(said("late", user(SECRET), SECRET, at=1_000.0))
    assert ledger.turns(1)[0].drop_reason is DropReason.FORGOTTEN
    assert [scope.owner for scope in ledger.forgetting_under_way()] == ["bob"]
    run_steps(ledger, resume())
    opened(state).close()


# For how long.


def in_a_while(ledger: Ledger, days: float) -> None:
    later = now(ledger) + days * DAY_S
    ledger._db.clock = lambda: later


def sweep(ledger: Ledger) -> None:
    while ledger.prune():
        pass


def forgotten_and_not_told(ledger: Ledger) -> None:
    ledger.record(said("old", user(SECRET), SECRET, session="s", at=now(ledger)))
    assert run_steps(ledger, forget(Wanted(owner="ann"), tell=False))["turns"] == 1


def test_after_a_month_the_sweep_takes_what_is_remembered_away(state: Path) -> None:
    ledger = opened(state)
    forgotten_and_not_told(ledger)
    in_a_while(ledger, 29)
    sweep(ledger)
    assert rows(ledger, "forgettings") == 1
    in_a_while(ledger, 2)
    ledger.begin_forgetting(owner="bob")
    sweep(ledger)
    assert [scope.owner for scope in ledger.forgetting_under_way()] == ["bob"] and rows(ledger, "forgettings") == 1
    assert not run_steps(ledger, forget(Wanted(owner="ann")))["found"]


@pytest.mark.parametrize("swept", [False, True], ids=["no sweep", "a sweep after each step"])
def test_who_asks_again_after_a_month_is_answered(state: Path, swept: bool) -> None:
    ledger = opened(state)
    forgotten_and_not_told(ledger)
    in_a_while(ledger, 40)
    report = stepwise(ledger, forget(Wanted(owner="ann")), lambda ran: sweep(ledger) if swept else None)
    assert report["turns"] == (0 if swept else 1)
    assert ledger.forgetting_under_way() == []


def test_whether_a_request_is_refused_is_asked_of_an_index(state: Path) -> None:
    ledger = opened(state)
    forgotten_and_not_told(ledger)
    asked: list[str] = []
    ledger._db.trace(asked.append)
    ledger.arrive(ask("next", user("hi"), owner="ann", session="t", at=now(ledger)))
    ledger._db.trace(None)
    questions = {each for each in asked if "FROM forgettings" in each and "BETWEEN" in each}
    assert questions
    for question in questions:
        plan = [row["detail"] for row in ledger._db.rows(f"EXPLAIN QUERY PLAN {question}")]
        assert plan == ["SEARCH forgettings USING INDEX forgettings_of (who=? AND until>?)"]


# Under which name.


@pytest.mark.parametrize("owner", ["ann", None], ids=["of a user", "of all"])
@pytest.mark.parametrize("rules", [({}, PRIVATE_RULES), (PRIVATE_RULES, {})], ids=["came", "went"])
def test_a_session_is_found_by_its_name_although_the_rules_about_names_changed(
    state: Path, owner: str | None, rules: tuple[dict[str, object], dict[str, object]]
) -> None:
    keys, name = open_keys(state, PrivacyConfig()), "ann@example.org"
    before, after = rules
    with opened(state, keys, **before) as ledger:
        ledger.record(said("old", user("hi"), "x", session=name, at=now(ledger)))
    with opened(state, keys, **after) as ledger:
        ledger.record(said("new", user("hi"), "x", session=name, at=now(ledger)))
        ledger.record(said("other", user("hi"), "x", session="other", at=now(ledger)))
        assert len({row.session for row in ledger.turns()}) == 3
        assert run_steps(ledger, forget(Wanted(owner=owner, session=name)))["turns"] == 2
        assert {row.turn_id for row in ledger.turns() if row.owner == "ann"} == {"other"}
