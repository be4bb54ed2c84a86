"""Two ranks: killed in the middle, asleep, or without anything to do for longer than they wait for each other."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from tests.training_kit import BATCH, Plan, copy_state, final_state, forks, prepare, train_rank, trained

pytestmark = pytest.mark.nightly


def start(plan: Plan, idle_s: float = 0.0) -> list[BaseProcess]:
    (plan.state / "rendezvous").unlink(missing_ok=True)
    ranks = [forks().Process(target=train_rank, args=(rank, plan, idle_s)) for rank in range(plan.ranks)]
    for process in ranks:
        process.start()
    return ranks


def end(ranks: list[BaseProcess], timeout_s: float = 120.0) -> list[int | None]:
    deadline = time.monotonic() + timeout_s
    for process in ranks:
        process.join(max(deadline - time.monotonic(), 0.0))
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    return codes


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = Plan(state=tmp_path / "start", model=tmp_path / "model", checkpoint_every=2, stop_after=4, ranks=2)
    prepare(plan, 4 * BATCH)
    return plan


def test_two_ranks_that_were_killed_end_with_the_weights_of_two_that_were_not(plan: Plan) -> None:
    straight, killed = (replace(plan, state=plan.state.with_name(name)) for name in ("straight", "killed"))
    for one in (straight, killed):
        copy_state(plan.state, one.state)
    assert end(start(straight)) == [0, 0]
    ranks = start(replace(killed, kill_at=("checkpointed", 2), lends_after={3: 2}))
    ranks[0].join(120)
    assert ranks[0].exitcode == -signal.SIGKILL
    ranks[1].kill()
    assert end(start(killed)) == [0, 0]
    assert trained(killed.state) == trained(straight.state) and len(trained(straight.state)) == 4
    for rank in range(2):
        ours, theirs = (final_state(one.state, rank, 2)["optimizer"]["masters"] for one in (killed, straight))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_after_an_idle_night_the_ranks_are_still_there_and_train_the_next_batch(tmp_path: Path) -> None:
    """Nothing comes for more than three times as long as a collective may take."""
    plan = Plan(
        state=tmp_path / "s", model=tmp_path / "m", checkpoint_every=1, stop_after=1, ranks=2, collective_timeout_s=8.0
    )
    prepare(plan, 0)
    ranks = start(plan, idle_s=30.0)
    assert end(ranks) == [0, 0]
    assert trained(plan.state) == {1: ["late-0", "late-1"]}


@pytest.mark.parametrize("sleeper", [0, 1])
def test_a_rank_that_sleeps_is_waited_for_only_as_long_as_configured(tmp_path: Path, sleeper: int) -> None:
    plan = Plan(
        state=tmp_path / "s", model=tmp_path / "m", checkpoint_every=1, stop_after=1, ranks=2, collective_timeout_s=6.0
    )
    prepare(plan, 0)
    ranks = start(plan)
    _until_registered(plan)
    pid = ranks[sleeper].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    slept_at = time.monotonic()
    other = ranks[1 - sleeper]
    other.join(60)
    assert other.exitcode not in (0, None), "it ends with an error, and Ray Train restarts both"
    assert time.monotonic() - slept_at < 60.0, "half an hour is what groups of a device mesh begin with"
    end(ranks, 0.0)


def _until_registered(plan: Plan) -> None:
    from clawrl.ledger import Ledger
    from clawrl.ledger.config import LedgerConfig

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with Ledger(plan.state / "ledger.sqlite", LedgerConfig()) as ledger:
            if ledger.current_version() is not None:
                return
        time.sleep(0.2)
    raise AssertionError("the ranks did not start")
