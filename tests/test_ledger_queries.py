"""Nothing on the hot path reads a table from end to end: the cost of a turn does not grow with their number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import DropReason, PolicyVersion, TurnId, TurnState, Vitals
from tests.ledger_kit import ask, judge, open_ledger, opinion, queue, reply, say, serve, taught, user, verdict

HI = user("hi")
SMALL = {"runs", "pause", "counters", "pruned"}


def arrive(ledger: Ledger) -> None:
    ledger.arrive(ask("n1", HI + reply("hello") + user("x"), session="s"))
    ledger.arrive(ask("n2", HI + reply("hello") + user("x")))


def record(ledger: Ledger) -> None:
    talk = HI + reply("hello") + user("bye")
    ledger.record(serve(ask("end", talk, session="s", ends=True), talk, "bye"))
    ledger.record(serve(ask("anon", HI), HI, "hello"))


def settle(ledger: Ledger) -> None:
    arrive(ledger)
    ledger.awaiting_judgement(10)
    ledger.judged(verdict("named"))


def teach(ledger: Ledger) -> None:
    named = serve(ask("named", HI), HI, "hello")
    ledger.is_duplicate(named)
    ledger.latest_turn("local", "s")
    ledger.feedback(opinion("named", 1.0, "good"))
    judge(ledger, "named", targets=taught())
    arrive(ledger)
    ledger.feedback(opinion("named", -1.0, at=6.0))
    ledger.targets(named.turn_id)
    ledger.known_hints("local", None, 5)
    ledger.known_hints("local", "s", 5)
    ledger.note_vitals(Vitals(turn_id=named.turn_id, version=1, response_tokens=3, repetition=0.0))
    ledger.recent_vitals(5)
    ledger.prune()
    ledger.mark_good(1)
    ledger.good_versions()
    ledger.roll_back(1)


def train(ledger: Ledger) -> None:
    ledger.drop_stale("run", 1, 5, now=0.0)
    assert (ledger.queued(1e9), ledger.lent_step()) == (3, None)
    lease = ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)
    assert lease is not None
    assert ledger.behind(lease.lease_id) == [0, 0]
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


def operate(ledger: Ledger) -> None:
    """What an operator asks for, by every filter; a page is looked at, of however long a history."""
    for wanted in (
        TurnFilter(),
        TurnFilter(state=TurnState.QUEUED),
        TurnFilter(state=TurnState.DROPPED),
        TurnFilter(reason=DropReason.GREEDY),
        TurnFilter(session="s", owner="local"),
        TurnFilter(version=1),
        TurnFilter(step=1),
    ):
        ledger.find_turns(wanted)
    assert [row.session for row in ledger.recent_sessions().rows][:1] == ["s-q3"]
    assert len(ledger.sessions_named("s")) == 1
    for name in ("named", "q1"):
        assert ledger.life(TurnId(name)) is not None
    ledger.version_rows(5)
    ledger.step_page(5)
    ledger.step_taken(1)
    ledger.checkpointed_step()


@pytest.mark.parametrize("operation", [arrive, record, settle, teach, train, wait, look, operate])
def test_every_statement_finds_its_rows_through_an_index(tmp_path: Path, operation: Callable[[Ledger], None]) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    say(ledger, "named", HI, "hello", session="s")
    say(ledger, "anonymous", HI, "hello")
    queue(ledger, "q1", "q2", "q3", group="g")
    ledger.commit_version(PolicyVersion(version=1, step=0, snapshot="s", digest="d", published_at=0.0))
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


def test_looking_for_undecided_siblings_never_reads_the_finished_turns(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "q1", "q2", group="g")
    statements: list[str] = []
    ledger._db.trace(statements.append)
    ledger.lease("run", 1, 2, now=0.0, timeout_s=9.0)
    ledger._db.trace(None)
    search = next(s for s in statements if s.startswith("SELECT turn_id, owner, group_id"))
    plan = [step["detail"] for step in ledger._db.rows(f"EXPLAIN QUERY PLAN {search}")]
    used = [match[1] for detail in plan if (match := re.search(r"INDEX (\w+)", detail))]
    assert used == ["turns_queued_oldest", "turns_undecided_group", "turns_queued_group"]
    assert not any("ORDER BY" in detail for detail in plan), "the queue is read in order, and no further than asked"


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
