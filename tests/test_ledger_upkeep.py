"""Waiting ends, finished turns become counts, and the counts still add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger import Swept
from clawrl.messages import DropReason, PolicyVersion, TurnId, TurnState
from tests.ledger_kit import (
    Clock,
    ask,
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
)

HI = user("hi")


def test_a_turn_that_nobody_continues_is_dropped_after_the_idle_timeout(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, idle_timeout_s=60.0)
    say(ledger, "a", HI, "hello")
    clock.now += 30.0
    say(ledger, "b", HI, "hello")
    assert ledger.sweep(clock.now + 29.0).no_evidence == 0
    assert ledger.sweep(clock.now + 31.0) == Swept(no_evidence=1, arrivals=0, leases=0)
    assert ledger.state(TurnId("a")) is TurnState.DROPPED
    assert ledger.counts().dropped == {DropReason.NO_EVIDENCE: 1}
    assert ledger.state(TurnId("b")) is TurnState.AWAITING_NEXT


def test_the_wait_begins_when_the_turn_is_recorded_not_when_it_was_served(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, idle_timeout_s=60.0)
    ledger.record(serve(ask("a", HI, at=0.0), HI, "hello"))
    assert ledger.sweep(clock.now + 1.0).no_evidence == 0


def test_only_waiting_turns_are_swept(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, idle_timeout_s=1.0)
    queue(ledger, "q")
    say(ledger, "j", HI, "hello", session="j")
    ledger.arrive(ask("n", HI + reply("hello") + user("x"), session="j"))
    assert ledger.sweep(1e9).no_evidence == 0
    assert (ledger.state(TurnId("q")), ledger.state(TurnId("j"))) == (TurnState.QUEUED, TurnState.JUDGING)


def test_a_request_that_never_became_a_turn_is_forgotten_and_may_still_come(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, idle_timeout_s=60.0)
    gone = ask("a", HI, session="s")
    ledger.arrive(gone)
    assert ledger.sweep(clock.now + 59.0).arrivals == 0
    assert ledger.sweep(clock.now + 61.0).arrivals == 1
    assert rows(ledger, "arrivals") == 0
    assert ledger.record(serve(gone, HI, "hello")).new


def test_sweeping_expires_leases_too(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "a")
    ledger.lease("run", 1, 1, now=0.0, timeout_s=10.0)
    assert ledger.sweep(11.0).leases == 1


def test_counts_tell_where_every_turn_is(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    queue(ledger, "a", "b")
    take_step(ledger, "run", 1, 1)
    ledger.checkpointed("run", 1)
    say(ledger, "c", HI, "hello")
    say(ledger, "d", HI, "hello", drop=DropReason.GREEDY)
    assert ledger.counts().as_dict() == {
        "recorded": 4,
        "adds_up": True,
        "by_state": {"trained": 1, "queued": 1, "awaiting_next": 1, "dropped": 1},
        "dropped": {"greedy": 1},
    }
    assert ledger.active_sessions() == 1


def test_a_lost_row_and_a_row_too_many_both_show_up_in_the_counts(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for turn_id in ("a", "b"):
        say(ledger, turn_id, HI, "hello")
    assert ledger.counts().adds_up
    ledger._db.execute("DELETE FROM turns WHERE turn_id = 'a'")
    assert not ledger.counts().adds_up
    ledger._db.execute("UPDATE counters SET value = 1 WHERE name = 'recorded'")
    assert ledger.counts().adds_up
    ledger._db.execute("INSERT INTO pruned VALUES ('trained', '', 1)")
    assert not ledger.counts().adds_up


def test_pruning_keeps_the_newest_finished_turns_and_counts_the_others(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, keep_finished_turns=2)
    say(ledger, "waiting", HI, "hello")
    for i, reason in enumerate([DropReason.GREEDY, DropReason.SIDE, DropReason.GREEDY, DropReason.EMPTY]):
        say(ledger, f"t{i}", HI, "hello", drop=reason)
    before = ledger.counts()
    assert ledger.prune() == 2
    assert ledger.prune() == 0
    assert ledger.counts() == before
    assert before.adds_up and before.dropped == {DropReason.GREEDY: 2, DropReason.SIDE: 1, DropReason.EMPTY: 1}
    assert [row.turn_id for row in ledger.turns()] == ["t3", "t2", "waiting"]
    assert ledger.transitions(TurnId("t0")) == []
    assert ledger.turn(TurnId("t0")) is None
    assert [rows(ledger, t) for t in ("turns", "payloads", "arrivals")] == [3, 3, 3]


def test_pruning_takes_everything_that_belongs_to_a_turn(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, keep_finished_turns=1)
    say(ledger, "a", HI, "hello", session="s")
    ledger.record(serve(ask("b", HI + reply("hello") + user("x"), session="s"), HI, "y"), DropReason.GREEDY)
    ledger.feedback(opinion("a", 0.0))
    judge(ledger, "a", 0, DropReason.NEUTRAL, taught())
    ledger.feedback(opinion("b", 1.0))
    say(ledger, "c", HI, "z", drop=DropReason.GREEDY)
    tables = ("turns", "payloads", "arrivals", "evidence", "judgements", "targets", "feedback", "transitions")
    assert min(rows(ledger, table) for table in tables) > 0
    assert ledger.prune() == 2
    assert {table: rows(ledger, table) for table in tables} == {
        "turns": 1,
        "payloads": 1,
        "arrivals": 1,
        "evidence": 0,
        "judgements": 0,
        "targets": 0,
        "feedback": 0,
        "transitions": 2,
    }


def test_a_trained_turn_is_kept_while_an_older_checkpoint_could_still_ask_for_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, keep_finished_turns=1, keep_trained_steps=2)
    ledger.restored("one", 0)
    queue(ledger, *"abcde")
    for step in (1, 2, 3, 4, 5):
        take_step(ledger, "one", step, 1)
    ledger.checkpointed("one", 4)
    assert ledger.prune() == 2, "steps 1 and 2 are two steps behind the checkpoint; 3 is not, 5 is not even trained"
    assert [ledger.state(TurnId(t)) for t in "abcde"] == [None, None, *[TurnState.TRAINED] * 2, TurnState.APPLIED]
    assert not ledger.restored("two", 2).out_of_reach
    assert ledger.restored("three", 1).out_of_reach, "step 2 was pruned and cannot be replayed"
    assert ledger.counts().adds_up


def test_teacher_targets_go_as_soon_as_nobody_can_train_on_the_turn_any_more(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, keep_trained_steps=1)
    ledger.restored("run", 0)
    for step in (1, 2, 3):
        to_judging(ledger, f"t{step}")
        judge(ledger, f"t{step}", targets=taught())
        take_step(ledger, "run", step, 1)
    ledger.checkpointed("run", 3)
    to_judging(ledger, "queued")
    judge(ledger, "queued", targets=taught())
    assert ledger.prune() == 0
    kept = {name: ledger.targets(TurnId(name)) is not None for name in ("t1", "t2", "t3", "queued")}
    assert kept == {"t1": False, "t2": False, "t3": True, "queued": True}
    assert ledger.counts().adds_up and ledger.turn(TurnId("t1")) is not None


def test_without_a_trainer_no_trained_turn_is_pruned_by_guess(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, keep_finished_turns=1, keep_trained_steps=0)
    ledger.restored("one", 0)
    queue(ledger, "a", "b")
    take_step(ledger, "one", 1, 2)
    ledger.checkpointed("one", 1)
    assert ledger.prune() == 1
    assert ledger.state(TurnId("b")) is TurnState.TRAINED


def test_a_pruned_step_is_remembered_when_an_earlier_one_is_pruned_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl.ledger.upkeep.BATCH", 1)
    ledger = open_ledger(tmp_path, keep_finished_turns=1, keep_trained_steps=0)
    ledger.restored("one", 0)
    queue(ledger, "a", "b", "c")
    ledger.lease("one", 1, 1, now=0.0, timeout_s=10.0)
    take_step(ledger, "one", 2, 1)
    ledger.expire_leases(11.0)
    take_step(ledger, "one", 3, 2)
    ledger.checkpointed("one", 3)
    assert [(row.turn_id, row.step) for row in ledger.turns()] == [("c", 3), ("b", 2), ("a", 3)]
    assert [ledger.prune(), ledger.prune(), ledger.prune()] == [1, 1, 0]
    assert ledger.restored("two", 2).out_of_reach


def test_history_of_versions_steps_runs_and_leases_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl.ledger.upkeep.KEEP_HISTORY", 3)
    ledger = open_ledger(tmp_path)
    for i in range(6):
        ledger.restored(f"run{i}", i)
        ledger.commit_version(PolicyVersion(version=i, step=i, snapshot="s", digest="d", published_at=0.0))
    queue(ledger, "lent")
    ledger.lease("run5", 99, 1, now=0.0, timeout_s=1e12)
    for step in range(6, 12):
        queue(ledger, f"t{step}")
        take_step(ledger, "run5", step, 1)
    ledger.prune()
    assert [rows(ledger, t) for t in ("versions", "steps", "runs")] == [4, 3, 3]
    assert [kept.version for kept in ledger.versions()] == [5, 4, 3, 0], "the newest, and the model as it came"
    assert rows(ledger, "leases") == 4, "the newest three, and one that still holds a turn"
    assert ledger.expire_leases(1e13) == 1
    assert ledger.state(TurnId("lent")) is TurnState.QUEUED


def test_ten_thousand_sessions_that_nobody_closes_leave_a_bounded_ledger(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, idle_timeout_s=60.0, keep_finished_turns=100)
    template = serve(ask("x", HI), HI, "hello")
    sizes = []
    for batch in range(10):
        with ledger.transaction():
            for i in range(1_000):
                arrival = replace(template.arrival, turn_id=TurnId(f"t{batch}-{i}"))
                ledger.record(replace(template, turn_id=arrival.turn_id, arrival=arrival))
        clock.now += 61.0
        ledger.sweep(clock.now)
        while ledger.prune():
            pass
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
        assert rows(ledger, "turns") == 100
    assert ledger.counts().as_dict() == {
        "recorded": 10_000,
        "adds_up": True,
        "by_state": {"dropped": 10_000},
        "dropped": {"no_evidence": 10_000},
    }
    assert max(rows(ledger, table) for table in ("arrivals", "payloads")) == 100
    assert rows(ledger, "transitions") == 300
    # The log that SQLite writes ahead is among them, and as long as its last checkpoint left it.
    assert sizes[-1] < 1.5 * sizes[1], "deleted pages are used again"


def test_one_call_of_sweep_or_prune_does_a_bounded_amount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl.ledger.upkeep.BATCH", 2)
    ledger = open_ledger(tmp_path, keep_finished_turns=1)
    for i in range(6):
        say(ledger, f"t{i}", HI, "hello")
    assert [ledger.sweep(1e9).no_evidence for _ in range(4)] == [2, 2, 2, 0]
    assert [ledger.prune() for _ in range(4)] == [2, 2, 1, 0]
