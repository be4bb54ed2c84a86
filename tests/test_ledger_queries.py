"""Nothing on the hot path reads a table from end to end: the cost of a turn does not grow with their number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from tests.ledger_kit import ask, open_ledger, queue, reply, say, serve, user, verdict

HI = user("hi")
SMALL = {"runs", "pause", "counters", "pruned"}


def arrive(ledger: Ledger) -> None:
    ledger.arrive(ask("n1", HI + reply("hello") + user("x"), session="s"))
    ledger.arrive(ask("n2", HI + reply("hello") + user("x")))


def record(ledger: Ledger) -> None:
    talk = HI + reply("hello") + user("bye")
    ledger.record(serve(ask("end", talk, session="s", ends=True), talk, "bye"))
    ledger.record(serve(ask("anon", HI), HI, "hello"))


def judge(ledger: Ledger) -> None:
    arrive(ledger)
    ledger.awaiting_judgement(10)
    ledger.judged(verdict("named"))


def train(ledger: Ledger) -> None:
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0, min_version=0)
    assert lease is not None
    ledger.confirm(lease.lease_id, "run", 1.0)
    ledger.applied(lease.lease_id, "run", {})
    ledger.checkpointed("run", 1)
    ledger.restored("again", 0)


def wait(ledger: Ledger) -> None:
    ledger.sweep(1e9)
    ledger.pause("x", "y")
    ledger.resume()


def look(ledger: Ledger) -> None:
    ledger.turns(5)
    ledger.turn(serve(ask("named", HI), HI, "x").turn_id)
    ledger.judgement(serve(ask("q1", HI), HI, "x").turn_id)
    ledger.versions(5)
    ledger.steps(5)


@pytest.mark.parametrize("operation", [arrive, record, judge, train, wait, look])
def test_every_statement_finds_its_rows_through_an_index(tmp_path: Path, operation: Callable[[Ledger], None]) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    say(ledger, "named", HI, "hello", session="s")
    say(ledger, "anonymous", HI, "hello")
    queue(ledger, "q1", "q2", "q3")
    statements: list[str] = []
    ledger._db.trace(statements.append)
    operation(ledger)
    ledger._db.trace(None)
    planned = 0
    for statement in statements:
        if not statement.startswith(("SELECT", "UPDATE", "DELETE")):
            continue
        planned += 1
        for step in ledger._db.rows(f"EXPLAIN QUERY PLAN {statement}"):
            scanned = re.match(r"SCAN (\w+)(.*)", step["detail"])
            bounded = (
                scanned is None
                or scanned[1] in SMALL
                or " LIMIT " in statement  # newest first, a page of it
                or re.search(
                    r"USING (COVERING )?INDEX (turns_(judged|queued|awaiting|judging)|leases_(open|live))", scanned[2]
                )
            )
            assert bounded, f"{step['detail']}: {statement}"
    assert planned > 3


def test_many_finished_twins_do_not_slow_the_search_for_the_one_that_waits(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    statements: list[str] = []
    ledger._db.trace(statements.append)
    ledger.arrive(ask("n", HI + reply("hello") + user("x")))
    ledger._db.trace(None)
    searches = [s for s in statements if s.startswith("SELECT turn_id, session FROM turns")]
    plans = [ledger._db.rows(f"EXPLAIN QUERY PLAN {search}")[0]["detail"] for search in searches]
    assert "turns_anonymous_awaiting" in plans[0]
    assert "turns_anonymous " in plans[1]
