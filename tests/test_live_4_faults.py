"""`kill -9` of each actor in turn, during traffic: service recovers, counts add up, nothing is trained twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.live import Live
from tests.traffic import Traffic
from tests.trained_once import nothing_is_trained_twice


def _coordinator(live: Live) -> int:
    return int(live.status()["coordinator"]["pid"])


def _trainer(live: Live) -> int:
    return live.pids("RayTrainWorker")[0]


def _rollout(live: Live) -> int:
    return int(max(live.status()["replicas"], key=lambda r: r["running"])["pid"])


def _judge(live: Live) -> int:
    return live.pids("ServeReplica:clawrl:Judge")[0]


def _driver(live: Live) -> int:
    return live.pids("TrainerDriver")[0]


@pytest.mark.parametrize(
    ("victim", "may_fail"),
    [
        pytest.param(_coordinator, False, id="coordinator", marks=pytest.mark.nightly),
        pytest.param(_judge, False, id="judge", marks=pytest.mark.nightly),
        pytest.param(_trainer, False, id="trainer worker", marks=pytest.mark.nightly),
        pytest.param(_driver, False, id="trainer driver", marks=pytest.mark.nightly),
        pytest.param(_rollout, True, id="rollout"),
    ],
)
def test_a_killed_actor_comes_back_and_the_ledger_still_adds_up(
    live: Live, victim: Callable[[Live], int], may_fail: bool
) -> None:
    before = live.status()
    with Traffic(live, users=3, pause_s=0.3) as traffic:
        _until(lambda: len(traffic.answers) > 6)
        pid = victim(live)
        killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        # Learning goes on after the blow: a version made of turns that were judged after it.
        current = before["version"]
        live.wait_for(
            lambda s: s["version"] >= current + 3 and s["versions"][0]["published_at"] > killed_at + 1,
            timeout_s=150,
            what="versions published after the kill",
        )
        _until(lambda: sum(answer.asked_at > killed_at + 5 for answer in traffic.answers) > 6)
    # Only the streams on a killed replica may end in an error, and only around the kill.
    assert all(killed_at - 30 < at < killed_at + 90 for at, _ in traffic.failures), traffic.failures
    assert may_fail or traffic.failures == []
    status = live.wait_for(lambda s: len(s["replicas"]) == 2, timeout_s=120, what="both replicas")
    assert status["turns"]["adds_up"]
    assert status["unrecorded"] == 0
    recorded = status["turns"]["recorded"] - before["turns"]["recorded"]
    assert recorded >= len(traffic.answers), "every answer that a client got is in the ledger"
    with live.ledger() as ledger:
        nothing_is_trained_twice(ledger)


def test_a_new_replica_serves_nothing_before_it_holds_the_current_version(live: Live) -> None:
    """After the kills above every replica holds the version that is current, though it began from the base model."""
    status = live.status()
    live.wait_for(
        lambda s: len(s["replicas"]) == 2 and all(r["version"] == s["version"] for r in s["replicas"]),
        timeout_s=120,
        what="replicas at the current version",
    )
    with Traffic(live, users=2, pause_s=0.1) as traffic:
        _until(lambda: len(traffic.answers) > 10)
    assert traffic.failures == []
    assert min(answer.version for answer in traffic.answers) >= status["version"]


def _until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("traffic does not flow")
        time.sleep(0.1)
