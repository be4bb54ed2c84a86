"""Too old is counted in batches that changed the weights, and no answer is too old for being long."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clawrl.ledger import FencedRun, Ledger
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.messages import DropReason, PolicyVersion, TurnId, TurnState, VersionSpan
from clawrl.training.staleness import lag, most_behind
from tests.ledger_kit import Clock, ask, ids, open_ledger, queue, reply, serve, take_step, user, verdict


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = open_ledger(tmp_path)
    ledger.restored("run", 0)
    return ledger


def publish(ledger: Ledger, version: int, step: int, **stats: int) -> None:
    made = PolicyVersion(version=version, step=step, snapshot="s", digest="d", published_at=0.0, stats=stats)
    assert ledger.commit_version(made)


def step(ledger: Ledger, number: int, turn_id: str, *, changed: bool = True) -> None:
    queue(ledger, turn_id, version=10_000)
    lease = ledger.lease("run", number, 1, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    assert ledger.applied(lease.lease_id, "run", {"changed": changed})


def behind(ledger: Ledger, number: int) -> int:
    """How far behind step ``number`` the one queued turn is."""
    lease = ledger.lease("run", number, 1, now=0.0, timeout_s=60.0)
    assert lease is not None
    (found,) = ledger.behind(lease.lease_id)
    return found


def test_a_lag_is_counted_in_steps_not_in_the_versions_that_happened_to_be_published(ledger: Ledger) -> None:
    publish(ledger, 1, 1)
    publish(ledger, 7, 4)
    ledger.checkpointed("run", 4)
    queue(ledger, "old", version=1)
    assert ledger.drop_stale("run", 5, 3, now=0.0) == 0
    assert ledger.drop_stale("run", 5, 2, now=0.0) == 1
    assert ledger.counts().dropped == {DropReason.STALE: 1}
    assert ledger.transitions(TurnId("old"))[-1].detail == "stale version 1 is 3 batches behind"


def test_a_turn_is_as_old_as_its_oldest_token(ledger: Ledger) -> None:
    publish(ledger, 1, 1)
    publish(ledger, 2, 2)
    queue(ledger, "straddles", version=1)
    assert ledger.turns(1, state=TurnState.QUEUED)[0].newest_version == 2
    assert behind(ledger, 3) == 1


def test_what_the_weights_of_the_step_themselves_sampled_is_not_behind(ledger: Ledger) -> None:
    publish(ledger, 3, 6)
    queue(ledger, "fresh", version=3)
    assert behind(ledger, 7) == 0


def test_batches_that_changed_nothing_make_nothing_older_and_cannot_starve_the_trainer(ledger: Ledger) -> None:
    publish(ledger, 1, 0)
    for number in range(1, 6):
        step(ledger, number, f"t{number}", changed=False)
    queue(ledger, "fresh", version=1)
    assert ledger.drop_stale("run", 6, 0, now=0.0) == 0
    assert behind(ledger, 6) == 0


@pytest.mark.parametrize("old_release", [False, True])
def test_a_gradient_that_was_not_finite_is_a_figure_like_any_other(ledger: Ledger, old_release: bool) -> None:
    """SQLite takes no Infinity for JSON, and a step whose figures nobody can read must not stop training."""
    queue(ledger, "bad", version=10_000)
    lease = ledger.lease("run", 1, 1, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "run", 1.0)
    assert ledger.applied(lease.lease_id, "run", {"changed": False, "grad_norm": float("inf"), "loss": float("nan")})
    if old_release:
        ledger._db.execute("UPDATE steps SET stats = ?", '{"changed":false,"grad_norm":Infinity}')
    queue(ledger, "next", version=0)
    assert ledger.drop_stale("run", 2, 1, now=0.0) == 0
    assert behind(ledger, 2) == (1 if old_release else 0)


def test_a_batch_that_changed_something_before_it_was_undone_counts_anew(ledger: Ledger) -> None:
    publish(ledger, 1, 0)
    step(ledger, 1, "a", changed=False)
    ledger.restored("again", 0)
    lease = ledger.lease("again", 1, 1, now=0.0, timeout_s=60.0)
    assert lease is not None and ledger.confirm(lease.lease_id, "again", 1.0)
    assert ledger.applied(lease.lease_id, "again", {"changed": True})
    queue(ledger, "b", version=1)
    assert ledger.drop_stale("again", 2, 0, now=0.0) == 1


def test_a_version_that_was_rolled_back_to_is_as_new_as_the_step_that_took_its_weights(ledger: Ledger) -> None:
    publish(ledger, 1, 2)
    publish(ledger, 2, 9)
    publish(ledger, 3, 2, **{REWOUND_AT: 11})
    queue(ledger, "served again", version=3)
    assert behind(ledger, 12) == 0


def test_answers_of_steps_that_a_restart_has_undone_are_not_newer_than_new(ledger: Ledger) -> None:
    publish(ledger, 1, 24)
    queue(ledger, "a", version=1)
    assert behind(ledger, 21) == 0


def test_numbers_that_nobody_knows_count_as_the_version_before_them(ledger: Ledger) -> None:
    publish(ledger, 0, 0)
    publish(ledger, 5, 5)
    queue(ledger, "shown before its publish failed", version=7)
    queue(ledger, "forgotten", version=3)
    assert ledger.drop_stale("run", 6, 4, now=0.0) == 1
    assert ledger.state(TurnId("forgotten")) is TurnState.DROPPED


def test_an_older_version_behind_a_newer_number_is_found_too(ledger: Ledger) -> None:
    publish(ledger, 1, 24)
    publish(ledger, 2, 20)
    queue(ledger, "ahead", version=1)
    queue(ledger, "behind", version=2)
    assert ledger.drop_stale("run", 24, 1, now=0.0) == 1
    assert ledger.state(TurnId("behind")) is TurnState.DROPPED


def test_what_an_expired_lease_gives_back_is_looked_at_as_well(ledger: Ledger) -> None:
    publish(ledger, 1, 1)
    queue(ledger, "a", version=1)
    assert ledger.lease("run", 2, 1, now=0.0, timeout_s=10.0) is not None
    ledger.checkpointed("run", 8)
    with ledger.transaction():
        assert ledger.drop_stale("run", 9, 2, now=11.0) == 1
        assert ledger.lease("run", 9, 1, now=11.0, timeout_s=10.0) is None


def test_a_run_that_was_replaced_drops_nothing(ledger: Ledger) -> None:
    publish(ledger, 1, 1)
    queue(ledger, "a", version=1)
    ledger.restored("newer", 1)
    with pytest.raises(FencedRun):
        ledger.drop_stale("run", 100, 0, now=0.0)
    assert ledger.counts().dropped == {}


def test_a_ledger_from_before_turns_were_ordered_by_age_gets_its_index(tmp_path: Path, ledger: Ledger) -> None:
    queue(ledger, "a")
    ledger._db.execute("DROP INDEX turns_queued_oldest")
    ledger.close()
    again = open_ledger(tmp_path)
    assert ids(again.lease("run", 1, 1, now=0.0, timeout_s=9.0)) == ["a"]


BATCH, UPDATES, LIMIT, STEPS = 4, 2, 7, 25
SHORT, LONG = 4, 40


def test_with_a_slow_trainer_no_lag_exceeds_the_limit_and_long_answers_train_as_often_as_short_ones(
    tmp_path: Path,
) -> None:
    """Three times as much comes as can be trained. Long answers take one and a half steps to write, short ones none."""
    chance, clock = random.Random(0), Clock()
    ledger = open_ledger(tmp_path, clock)
    ledger.restored("run", 0)
    publish(ledger, 0, 0)
    offered, trained, lags = Counter[int](), Counter[int](), list[int]()
    coming: list[tuple[float, float, int, int]] = []
    for taken in range(STEPS):
        for _ in range(3 * BATCH):
            began, tokens = taken + chance.random(), chance.choice([SHORT, LONG])
            offered[tokens] += 1
            # The judge takes up to half a step more.
            judged_at = began + (1.5 if tokens == LONG else 0.1) + chance.random() / 2
            heapq.heappush(coming, (judged_at, began, taken, tokens))
        with ledger.transaction():
            while coming and coming[0][0] < taken + 1:
                judged_at, began, version, tokens = heapq.heappop(coming)
                _judge(ledger, f"t{judged_at}", tokens, (version, int(judged_at)), began)
        with ledger.transaction():
            ledger.drop_stale("run", taken + 1, most_behind(LIMIT, UPDATES), clock.now)
            lease = ledger.lease("run", taken + 1, BATCH, now=clock.now, timeout_s=60.0, minimum=1)
        if lease is not None:
            lags += [lag(late, UPDATES) for late in ledger.behind(lease.lease_id)]
            trained.update(len(lent.turn.response_ids) for lent in lease.turns)
            assert ledger.confirm(lease.lease_id, "run", clock.now)
            assert ledger.applied(lease.lease_id, "run", {"changed": True})
        publish(ledger, taken + 1, taken + 1)
    assert max(lags) == LIMIT, "the bound holds, and what it allows is used"
    assert ledger.counts().dropped[DropReason.STALE] > trained.total(), "the trainer could not keep up"
    assert trained[LONG] / trained.total() == pytest.approx(offered[LONG] / offered.total(), abs=0.12)


def _judge(ledger: Ledger, name: str, tokens: int, versions: tuple[int, int], began: float) -> None:
    question = user(f"question of {name}")
    turn = serve(ask(name, question, session=name), question, "answer")
    first, last = versions
    spans = (VersionSpan(start=0, end=1, version=first), VersionSpan(start=1, end=tokens, version=last))
    written = replace(
        turn,
        response_ids=np.arange(tokens, dtype=np.int32),
        response_logps=-np.ones(tokens, dtype=np.float32),
        spans=spans,
        started_at=began,
    )
    ledger.record(written)
    ledger.arrive(ask(f"{name}-next", question + reply("answer") + user("thanks"), session=name))
    assert ledger.judged(verdict(name))


def test_a_trainer_that_waits_for_its_judge_drops_nothing_however_long_that_takes(ledger: Ledger) -> None:
    """A lag grows with steps, not with time: turns that come late find the version that sampled them still new."""
    publish(ledger, 0, 0)
    for number in range(1, 5):
        queue(ledger, f"t{number}", version=number - 1)
        for _ in range(100):
            assert ledger.drop_stale("run", number, 0, now=1e6 * number) == 0
        assert take_step(ledger, "run", number, 1) == [f"t{number}"]
        publish(ledger, number, number)
