"""What an operator asks of a long history costs what a page costs: by its plans, by its work, and it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from clawrl.ledger import Ledger, looking
from clawrl.ledger.database import Database
from clawrl.ledger.looking import SCAN, TurnFilter
from clawrl.messages import DropReason, TurnState
from tests.ledger_kit import open_ledger, say, user

SHORT, LONG = 3 * SCAN, 12 * SCAN
VALUES: dict[str, Any] = {
    "state": TurnState.QUEUED,
    "reason": DropReason.GREEDY,
    "session": "big",
    "owner": "local",
    "version": 1,
    "step": 2,
}
Question = Callable[[Ledger, int | None], object]


def turns_that(**fields: Any) -> Question:
    return lambda ledger, before: ledger.find_turns(TurnFilter(**fields), before, 100)


QUESTIONS: dict[str, Question] = {
    "turns": turns_that(),
    "dropped": turns_that(state=TurnState.DROPPED),
    "a dropped session": turns_that(state=TurnState.DROPPED, session="big"),
    "an owner of none": turns_that(owner="nobody"),
    "a version of none": turns_that(version=10**6),
    **{name: turns_that(**{name: value}) for name, value in VALUES.items()},
    **{
        f"{one} {two}": turns_that(**{one: VALUES[one], two: VALUES[two]})
        for one, two in combinations(VALUES, 2)
        if {one, two} != {"state", "reason"}
    },
    "sessions": lambda ledger, before: ledger.recent_sessions(before, 100),
    "sessions of a name": lambda ledger, before: ledger.sessions_named("big"),
    "versions": lambda ledger, before: ledger.version_rows(before, 100),
    "steps": lambda ledger, before: ledger.step_page(before, 100),
}


def history(folder: Path, turns: int) -> Ledger:
    """Copies of one turn in several states, of one long session and of many owners' and names, over many versions."""
    ledger = open_ledger(folder)
    say(ledger, "t0", user("hi"), "hello", session="big")
    db = ledger._db
    with ledger.transaction():
        for table in ("turns", "arrivals"):
            instead = {
                "turn_id": "'t' || n.i",
                "seq": "NULL",
                # Every other turn is of one session; the rest of sessions of four turns each, some called alike.
                "session": "CASE WHEN n.i % 2 THEN session ELSE 's' || (n.i / 8) END",
                "owner": "CASE WHEN n.i % 10 = 9 THEN 'o' || n.i ELSE owner END",
                "oldest_version": "n.i / 1000",
                "newest_version": "n.i / 1000 + CASE n.i % 50 WHEN 1 THEN 1 WHEN 3 THEN 3 ELSE 0 END",
                "state": "CASE n.i % 5 WHEN 0 THEN 'queued' WHEN 1 THEN 'dropped' WHEN 2 THEN 'trained' ELSE state END",
                "reason": "CASE n.i % 5 WHEN 1 THEN 'greedy' END",
                "step": "CASE n.i % 5 WHEN 2 THEN n.i / 1000 END",
                "lease_id": "CASE n.i % 5 WHEN 2 THEN 'l' END",
            }
            columns = [row["name"] for row in db.rows(f"PRAGMA table_info({table})")]
            values = ", ".join(instead.get(column, column) for column in columns)
            db.execute(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {turns})"
                f" INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, n"
                f" WHERE {table}.turn_id = 't0'"
            )
        for number in range(turns // 100):
            db.execute(
                "INSERT INTO versions (version, step, snapshot, digest, published_at, stats)"
                " VALUES (?, ?, 's', 'd', 0, '{}')",
                number,
                number,
            )
            db.execute(
                "INSERT INTO steps (run_id, step, state, turns, stats, at) VALUES ('r', ?, 'trained', 1, '{}', 0)",
                number,
            )
    return ledger


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with history(tmp_path_factory.mktemp("short"), SHORT) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with history(tmp_path_factory.mktemp("long"), LONG) as ledger:
        yield ledger


def plan(db: Database, ask: Callable[[], object]) -> list[tuple[str, str]]:
    """Each step of the plans of what is asked, with its statement."""
    statements: list[str] = []
    db.trace(statements.append)
    ask()
    db.trace(None)
    return [
        (step["detail"], statement)
        for statement in statements
        if statement.startswith("SELECT")
        for step in db.rows(f"EXPLAIN QUERY PLAN {statement}")
    ]


@pytest.mark.parametrize("before", [None, 5_000], ids=["newest", "paged"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_list_sorts_or_reads_a_table_from_end_to_end(short: Ledger, question: str, before: int | None) -> None:
    steps = plan(short._db, lambda: QUESTIONS[question](short, before))
    assert steps
    for detail, statement in steps:
        assert "TEMP B-TREE" not in detail and not detail.startswith("SCAN"), f"{detail}: {statement}"


def work(db: Database, ask: Callable[[], object]) -> int:
    """In hundreds of the database's own instructions."""
    done = [0]

    def count() -> int:
        done[0] += 1
        return 0

    db._connection.set_progress_handler(count, 100)
    ask()
    db._connection.set_progress_handler(None, 0)
    return done[0]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_page_of_a_history_four_times_as_long_is_the_same_work(short: Ledger, long: Ledger, question: str) -> None:
    in_short, in_long = (work(ledger._db, lambda: QUESTIONS[question](ledger, None)) for ledger in (short, long))  # noqa: B023
    assert in_long <= in_short * 1.5 + 150, (in_short, in_long)
    assert in_long < 1_500, "a few thousand rows, and no more"


@pytest.mark.parametrize("version", [0, 3, 4, 7, 11])
def test_all_turns_that_a_version_had_a_part_in_are_found_page_by_page(long: Ledger, version: int) -> None:
    found: list[int] = []
    before: int | None = None
    while True:
        page = long.find_turns(TurnFilter(version=version), before, 500)
        found += [row.seq for row in page.rows]
        before = page.before
        if before is None:
            break
    true = [
        row["seq"]
        for row in long._db.rows(
            "SELECT seq FROM turns WHERE oldest_version <= ? AND newest_version >= ? ORDER BY seq DESC",
            version,
            version,
        )
    ]
    assert found == true and len(true) >= 1_000


def test_every_session_is_listed_once_however_long_one_of_them_is(short: Ledger) -> None:
    found: list[tuple[str, str]] = []
    before: int | None = None
    while True:
        page = short.recent_sessions(before, 100)
        found += [(row.owner, row.session) for row in page.rows]
        before = page.before
        if before is None:
            break
    true = short._db.rows("SELECT owner, session FROM turns GROUP BY owner, session ORDER BY max(seq) DESC")
    assert found == [(row["owner"], row["session"]) for row in true]


def test_a_very_long_session_is_counted_by_its_newest_turns_and_says_that_there_are_more(
    short: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (big, *others) = short.sessions_named("big")
    assert (big.owner, big.turns, big.more) == ("local", looking.MOST_COUNTED, True) or others
    (mine,) = [row for row in (big, *others) if row.owner == "local"]
    assert mine.turns == looking.MOST_COUNTED and mine.more and mine.first_at < mine.last_at
    (small,) = [row for row in short.sessions_named("s3") if row.owner == "local"]
    assert small.turns == 4 and not small.more
    monkeypatch.setattr(looking, "MOST_COUNTED", 4)
    assert not short.sessions_named("s3")[0].more, "exactly as many is not more"


def test_a_page_of_sessions_ends_where_enough_turns_were_counted_and_goes_on_there(
    short: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [row.last_seq for row in short.recent_sessions(None, 20).rows]
    monkeypatch.setattr(looking, "SCAN", 200)
    page = short.recent_sessions(None, 20)
    assert page.rows[-1].session == "big" and page.rows[-1].more and page.before == page.rows[-1].last_seq
    both = [row.last_seq for row in (*page.rows, *short.recent_sessions(page.before, 20).rows)]
    assert len(both) > len(page.rows) and both == whole[: len(both)]


def test_of_very_many_owners_of_one_name_the_first_are_shown(short: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(short.sessions_named("big")) == looking.MOST_OWNERS
    monkeypatch.setattr(looking, "MOST_OWNERS", 3)
    assert [row.owner for row in short.sessions_named("big")] == ["local", "o1009", "o1019"]


def test_a_ledger_without_these_indices_gets_them_when_it_is_opened(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        for name in ("turns_named", "turns_in_session", "turns_from_version", "turns_to_version"):
            ledger._db.execute(f"DROP INDEX {name}")
        ledger._db.execute("CREATE INDEX turns_of_session ON turns (session, owner, state)")
    with open_ledger(tmp_path) as ledger:
        names = {row["name"] for row in ledger._db.rows("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert {"turns_named", "turns_in_session", "turns_from_version", "turns_to_version"} <= names
        assert "turns_of_session" not in names
        assert ledger.find_turns(TurnFilter(session="s", version=1)).rows == ()
