"""What the ledger knows as metrics: levels that a restart does not change, events that are told once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clawrl.ledger.views import Counts, StepRow, StepState, VersionReward
from clawrl.messages import DropReason, PolicyVersion, TurnState
from clawrl.metrics import catalogue
from clawrl.metrics.following import Following, Look, look
from clawrl.metrics.metric import Kind
from clawrl.metrics.sink import Buffer, totals


def step(number: int, *, run: str = "run", state: StepState = StepState.APPLIED, **stats: Any) -> StepRow:
    return StepRow(run_id=run, step=number, state=state, turns=4, reward_mean=0.5, stats=stats, at=float(number))


def version(number: int, *, step: int = 0, published_at: float = 0.0, **stats: Any) -> PolicyVersion:
    return PolicyVersion(
        version=number, step=step, snapshot=f"v{number}", digest="d", published_at=published_at, stats=stats
    )


PUBLISHED = {"transfer_s": 0.1, "publish_s": 0.2, "hold_ms": 3.0, "committed": 2, "carried": 5, "bytes": 1000}


def moment(
    steps: Sequence[StepRow] = (),
    versions: Sequence[PolicyVersion] = (),
    rewards: Sequence[VersionReward] = (),
    **more: Any,
) -> Look:
    counts = Counts(recorded=0, by_state={}, dropped={})
    fields: dict[str, Any] = {"counts": counts, "sessions": 0, "paused": False}
    return Look(**{**fields, "steps": steps, "versions": versions, "rewards": rewards, **more})


def told(
    following: Following, seen: Look, replicas: Sequence[dict[str, Any]] = (), **guards: float
) -> dict[Any, float]:
    sink = Buffer()
    following.tell(sink, seen, replicas, guards, journaled=0)
    return totals(sink.drain())


def events(found: dict[Any, float]) -> dict[Any, float]:
    """Without the levels."""
    gauges = {metric.name for metric in catalogue.CATALOGUE if metric.kind is Kind.GAUGE}
    return {key: value for key, value in found.items() if key[0] not in gauges}


def test_every_state_and_every_reason_is_told_from_the_start_and_what_is_missing_is_seen() -> None:
    counts = Counts(recorded=10, by_state={TurnState.QUEUED: 3, TurnState.DROPPED: 5}, dropped={DropReason.GREEDY: 5})
    found = told(Following(), moment(counts=counts, sessions=4, paused=True))
    assert {key[1] for key in found if key[0] == "turns"} == set(TurnState)
    assert {key[1] for key in found if key[0] == "turns_dropped"} == set(DropReason)
    assert found["turns", "queued"] == found["queue_depth",] == 3
    assert found["turns_dropped", "greedy"] == 5 and found["turns_dropped", "stale"] == 0
    assert found["turns_recorded",] == 10 and found["turns_unaccounted",] == 2
    assert found["sessions_active",] == 4 and found["submission_paused",] == 1


def test_a_step_is_counted_once_and_its_time_is_split_without_a_rest() -> None:
    following = Following()
    told(following, moment())
    first = step(
        1, changed=True, step_s=10.0, wait_s=4.0, forward_s=1.0, backward_s=2.0, optimizer_s=0.5, lag={"0": 3, "2": 1}
    )
    found = events(told(following, moment([first])))
    assert found == {
        ("steps", "yes"): 1,
        ("step_seconds",): 1,
        ("step_phase_seconds", "wait"): 4.0,
        ("step_phase_seconds", "forward"): 1.0,
        ("step_phase_seconds", "backward"): 2.0,
        ("step_phase_seconds", "optimizer"): 0.5,
        ("step_phase_seconds", "other"): 2.5,
        ("sample_lag_steps",): 4,
    }
    assert events(told(following, moment([first]))) == {}
    second = step(2, changed=False, step_s=1.0, update_weights_s=0.75)
    found = events(told(following, moment([second, first])))
    assert found["steps", "no"] == 1 and found["step_phase_seconds", "update_weights"] == 0.75
    assert ("steps", "yes") not in found


def test_a_restarted_coordinator_counts_nothing_again_but_knows_every_level() -> None:
    steps = [step(2, changed=True, loss=0.25, step_s=1.0), step(1, changed=True, loss=0.5, step_s=1.0)]
    versions = [version(2, **PUBLISHED), version(1, **PUBLISHED)]
    following = Following()
    found = told(following, moment(steps, versions))
    assert events(found) == {}
    assert found["train_loss",] == 0.25 and found["step",] == 2 and found["policy_version",] == 2
    later = told(following, moment([step(3, changed=True, step_s=1.0), *steps], [version(3, **PUBLISHED), *versions]))
    assert later["steps", "yes"] == 1 and later["publishes", "trained"] == 1


def test_a_step_taken_again_after_a_crash_is_another_step() -> None:
    following = Following()
    told(following, moment())
    told(following, moment([step(1, changed=True)]))
    assert events(told(following, moment([step(1, run="later", changed=True)]))) == {("steps", "yes"): 1}


def test_a_figure_that_the_newest_step_lacks_is_that_of_the_one_before_and_no_figure_is_no_series() -> None:
    found = told(Following(), moment([step(2, changed=False, reward_mean=0.0), step(1, loss=0.5, grad_norm=None)]))
    assert found["train_loss",] == 0.5 and found["train_reward_mean",] == 0.0
    assert ("train_grad_norm",) not in found and ("train_kl",) not in found


def test_a_publish_is_told_when_its_commit_is_known_with_its_bytes_times_the_replicas() -> None:
    following = Following(clock=lambda: 100.0)
    told(following, moment())
    under_way = version(1, published_at=99.0, transfer_s=0.1)
    assert events(told(following, moment(versions=[under_way]))) == {}
    found = told(following, moment(versions=[version(1, published_at=99.0, **PUBLISHED)]))
    assert events(found) == {
        ("publishes", "trained"): 1,
        ("publish_seconds",): 1,
        ("publish_bytes",): 2000,
        ("hold_seconds",): 1,
        ("held_requests",): 5,
    }
    assert found["version_bytes",] == 1000


def test_a_commit_of_which_nothing_was_ever_heard_does_not_hold_up_the_versions_after_it() -> None:
    following = Following(clock=lambda: 1000.0)
    told(following, moment())
    silent, rollback = version(1, published_at=10.0, transfer_s=0.1), version(2, rolled_back_to=0)
    found = events(told(following, moment(versions=[rollback, silent])))
    assert found == {("publishes", "trained"): 1, ("publishes", "rollback"): 1}


def test_replicas_that_left_a_version_are_not_counted_there_any_longer() -> None:
    following = Following()
    first = told(following, moment(versions=[version(7)]), [{"replica": "a", "version": 7}])
    then = told(following, moment(versions=[version(8)]), [{"replica": "a", "version": 8}])
    assert first["replicas", "7"] == 1
    assert (then["replicas", "7"], then["replicas", "8"]) == (0, 1)


def test_replicas_are_told_by_version_and_how_many_are_behind() -> None:
    replicas = [{"replica": name, "version": held} for name, held in (("a", 7), ("b", 7), ("c", 5))]
    found = told(Following(), moment(versions=[version(7)]), replicas)
    assert found["replicas", "7"] == 2 and found["replicas", "5"] == 1 and found["replicas_behind",] == 1


def test_of_versions_only_the_newest_are_told() -> None:
    replicas = [{"replica": str(number), "version": number} for number in range(40)]
    found = told(Following(), moment(), replicas)
    assert {key[1] for key in found if key[0] == "replicas"} == {str(n) for n in range(32, 40)}


def test_the_reward_of_each_version_and_the_guards_divergence_are_told() -> None:
    rewards = [VersionReward(version=4, mean=0.75, turns=8), VersionReward(version=3, mean=-0.5, turns=2)]
    found = told(Following(), moment(rewards=rewards), kl=0.125)
    assert found["reward_mean", "4"] == 0.75 and found["reward_mean", "3"] == -0.5
    assert found["rewarded_turns", "4"] == 8 and found["kl_from_start",] == 0.125


def test_a_look_at_a_real_ledger_finds_rewards_by_the_version_that_began_the_turns(tmp_path: Path) -> None:
    import asyncio

    from tests.office import Office, talk, until

    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        seen = await coordinator._db.run(look)
        assert seen.counts.recorded == 3 and seen.counts.by_state[TurnState.QUEUED] == 2
        assert [(reward.version, reward.mean, reward.turns) for reward in seen.rewards] == [(0, 1.0, 2)]
        assert not seen.paused and seen.steps == [] and seen.versions == []
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize("enough", [1, 2])
def test_rewards_are_those_of_the_newest_turns_only(tmp_path: Path, enough: int) -> None:
    import asyncio

    from tests.office import Office, talk, until

    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        # The newest turn of the three has no reward yet.
        rewards = await coordinator._db.run(lambda ledger: ledger.reward_by_version(enough, 8))
        assert sum(reward.turns for reward in rewards) == enough - 1
        await coordinator.close()

    asyncio.run(run())


def test_the_coordinator_tells_its_sink_of_judgements_and_on_its_own_clock_of_the_ledger(tmp_path: Path) -> None:
    import asyncio

    from clawrl.actors.coordinator import Coordinator
    from clawrl.actors.judging_desk import JudgeCalls
    from clawrl.methods.registry import build_method
    from tests.office import Office, looks_well, says_good, talk, teaches, until

    async def run() -> None:
        deployment = Office(tmp_path, metrics__ledger_s=0.02).deployment
        sink = Buffer()
        calls = JudgeCalls(judge=says_good, teach=teaches, vitals=looks_well)
        coordinator = Coordinator(deployment, build_method(deployment.trainer.method), calls, sink)
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        readings = sink.drain()
        async with asyncio.timeout(120.0):
            while totals(readings).get(("turns", "queued")) != 2 or ("turns_recorded",) not in totals(readings):
                await asyncio.sleep(0.01)
                readings += sink.drain()
        found = totals(readings)
        assert found["judgements", "good", "judge"] == 2 and found["judge_seconds",] == 2
        assert found["turns", "queued"] == 2 and found["turns_recorded",] == 3
        await coordinator.close()

    asyncio.run(run())
