"""The coordinator as plain Python: no cluster, no model, a judge that is a function."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.lease_desk import EndOfTraining
from clawrl.messages import (
    FinishReason,
    Judgement,
    JudgeRequest,
    Lease,
    Message,
    SamplingParams,
    Verdict,
    WeightKind,
    WeightManifest,
)
from clawrl.weights.members import Admit, CatchUp, Outcome
from clawrl.weights.transaction import PublishFailed
from tests.live import REPOSITORY
from tests.office import (
    Office,
    says_good,
    talk,
    turn,
    until,
)


def _states(status: dict[str, Any]) -> dict[str, int]:
    return {state: n for state, n in status["turns"]["by_state"].items() if n}


def test_a_turn_goes_from_its_record_to_trained_and_every_count_follows(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await talk(coordinator, 3)
        status = await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        assert _states(status) == {"queued": 2, "awaiting_next": 1}
        await coordinator.restored("run", 0)
        lease = await coordinator.lease("run", 1, 1.0)
        assert isinstance(lease, Lease) and [s.turn_id for s in lease.samples] == ["s-0", "s-1"]
        assert [sample.reward for sample in lease.samples] == [1.0, 1.0]
        assert await coordinator.confirm(lease.lease_id, "run")
        assert await coordinator.applied(lease.lease_id, "run", {"loss": 0.5})
        assert _states(await coordinator.status()) == {"applied": 2, "awaiting_next": 1}
        assert await coordinator.checkpointed("run", 1)
        status = await coordinator.status()
        assert _states(status) == {"trained": 2, "awaiting_next": 1} and status["turns"]["adds_up"]
        assert status["trainer"]["last_metrics"]["loss"] == 0.5
        await coordinator.close()

    asyncio.run(run())


def test_a_lease_that_was_asked_for_early_waits_until_the_batch_is_full(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("run", 0)
        lease = asyncio.create_task(coordinator.lease("run", 1, 120.0))
        await talk(coordinator, 2, "first")
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 1)
        await asyncio.sleep(0.05)
        assert not lease.done(), "one turn is half a batch"
        await talk(coordinator, 2, "second")
        given = await lease
        assert isinstance(given, Lease) and len(given.samples) == 2
        await coordinator.close()

    asyncio.run(run())


def test_judging_begins_when_the_reaction_arrives_and_not_after_its_answer(tmp_path: Path) -> None:
    async def run() -> None:
        judged = asyncio.Event()

        async def judge(request: JudgeRequest) -> Judgement:
            judged.set()
            return await says_good(request)

        coordinator = Office(tmp_path).open(judge)
        hello = [Message(role="user", content="hello")]
        await coordinator.record(turn("a", hello, "hi"))
        follow = [*hello, Message(role="assistant", content="hi"), Message(role="user", content="thanks")]
        await coordinator.arrive(turn("b", follow, "not answered yet").arrival)
        await asyncio.wait_for(judged.wait(), 120)
        await coordinator.close()

    asyncio.run(run())


def test_a_session_that_its_owner_ends_later_waits_for_no_more_reactions(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await talk(coordinator, 1, "mine")
        await talk(coordinator, 1, "another")
        assert await coordinator.end_session("somebody else", "mine") == 0
        assert await coordinator.end_session("o", "mine") == 1
        assert await coordinator.end_session("o", "mine") == 0
        status = await coordinator.status()
        assert status["turns"]["dropped"] == {"session_ended": 1} and _states(status)["awaiting_next"] == 1
        await coordinator.close()

    asyncio.run(run())


def test_an_answer_is_given_out_to_its_owner_alone(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        (said,) = await talk(coordinator, 1)
        answered = await coordinator.answered(said.turn_id, "o")
        assert answered is not None
        assert (answered[0].messages, answered[1]) == (said.arrival.messages, said.answer)
        assert await coordinator.answered(said.turn_id, "somebody else") is None
        await coordinator.close()

    asyncio.run(run())


def test_a_judge_that_fails_makes_a_dropped_turn_and_never_a_reward(tmp_path: Path) -> None:
    async def run() -> None:
        async def broken(request: JudgeRequest) -> Judgement:
            raise RuntimeError("out of order")

        coordinator = Office(tmp_path, judge__verdict__backoff_s=0.0).open(broken)
        await talk(coordinator, 2)
        status = await until(coordinator, lambda s: s["turns"]["dropped"].get("judge_abstained") == 1)
        assert "queued" not in _states(status)
        await coordinator.close()

    asyncio.run(run())


def test_a_restart_sends_what_is_owed_to_the_judge_again(tmp_path: Path) -> None:
    async def run() -> None:
        async def hangs(request: JudgeRequest) -> Judgement:
            await asyncio.sleep(3600)
            raise AssertionError

        office = Office(tmp_path)
        before = office.open(hangs)
        await talk(before, 2)
        await until(before, lambda s: s["turns"]["by_state"].get("judging") == 1)
        await before.close()
        after = office.open()
        await until(after, lambda s: s["turns"]["by_state"].get("queued") == 1)
        await after.close()

    asyncio.run(run())


def test_a_neutral_verdict_trains_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async def shrugs(request: JudgeRequest) -> Judgement:
            return Judgement(
                turn_id=request.turn_id, verdict=Verdict.NEUTRAL, score=0.0, votes=(0,), judge="f", seconds=0
            )

        coordinator = Office(tmp_path).open(shrugs)
        await talk(coordinator, 2)
        await until(coordinator, lambda s: s["turns"]["dropped"].get("neutral") == 1)
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sampling": SamplingParams(temperature=0.0)}, "greedy"),
        ({"sampling": SamplingParams(top_p=0.9)}, "filtered"),
        ({"finish_reason": FinishReason.ABORTED}, "aborted"),
        ({"ends_session": True}, "session_ended"),
    ],
)
def test_what_cannot_train_is_dropped_at_once_with_its_reason(tmp_path: Path, changes: Any, reason: str) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.record(turn("a", [Message(role="user", content="hello")], "hi", **changes))
        assert (await coordinator.status())["turns"]["dropped"][reason] == 1
        await coordinator.close()

    asyncio.run(run())


def test_idle_sessions_end_by_themselves(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, ledger__idle_timeout_s=0.1).open()
        await talk(coordinator, 1)
        await until(coordinator, lambda s: s["turns"]["dropped"].get("no_evidence") == 1)
        await coordinator.close()

    asyncio.run(run())


def test_a_waiting_trainer_gets_the_batch_the_moment_it_is_full(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("run", 0)
        waiting = asyncio.ensure_future(_lease_soon(coordinator))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await talk(coordinator, 3)
        lease = await asyncio.wait_for(waiting, 120)
        assert len(lease.samples) == 2
        assert await coordinator.lease("run", 2, 0.05) is None
        await coordinator.end_training()
        assert isinstance(await coordinator.lease("run", 2, 5.0), EndOfTraining)
        await coordinator.close()

    asyncio.run(run())


async def _lease_soon(coordinator: Coordinator) -> Lease:
    while (lease := await coordinator.lease("run", 1, 5.0)) is None:
        pass
    assert isinstance(lease, Lease)
    return lease


def test_a_paused_ledger_lends_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("run", 0)
        await coordinator.pause("operator", "lunch")
        await talk(coordinator, 3)
        status = await until(coordinator, lambda s: s["turns"]["by_state"].get("judged") == 2)
        assert status["paused"] and status["pause_reason"] == "lunch"
        assert await coordinator.lease("run", 1, 0.05) is None
        assert await coordinator.resume() == 2
        assert isinstance(await coordinator.lease("run", 1, 1.0), Lease)
        await coordinator.close()

    asyncio.run(run())


def test_a_published_version_is_current_and_a_late_replica_catches_up_before_it_may_serve(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await coordinator.restored("run", 0)
        number = await coordinator.next_version()
        manifest = WeightManifest(version=number, kind=WeightKind.FULL, tensors=(), buckets=(), digest="d")
        with pytest.raises(PublishFailed, match="replaced"):
            await coordinator.begin_publish("an older run", manifest, 4, "/snapshots/x", "127.0.0.1", 1)
        meeting = await coordinator.begin_publish("run", manifest, 4, "/snapshots/x", "127.0.0.1", 1)
        version = await coordinator.finish_publish(meeting.name)
        assert (await coordinator.current_version()).step == 4 and version.version == number
        order = await coordinator.poll("late", 0, {"running": 0, "unrecorded": 3}, 60.0)
        assert order is not None and isinstance(order.command, CatchUp) and order.command.version.version == number
        await coordinator.report("late", order.number, number, Outcome(ok=True))
        assert (await coordinator.status())["floor"] == 0, "it does not count before it serves"
        order = await coordinator.poll("late", number, {"unrecorded": 3}, 60.0)
        assert order is not None and isinstance(order.command, Admit)
        await coordinator.report("late", order.number, number, Outcome(ok=True))
        assert await coordinator.poll("late", number, {"unrecorded": 3, "serving": True}, 0.7) is None
        asked = turn("t", [Message(role="user", content="hello")], "hi").arrival
        assert await coordinator.arrive(asked) == number, "from now on nothing older answers"
        status = await coordinator.status()
        assert status["version"] == number and status["unrecorded"] == 3
        assert status["versions"][0]["stats"]["committed"] == 0
        assert [(r["replica"], r["version"]) for r in status["replicas"]] == [("late", number)]
        await coordinator.close()

    asyncio.run(run())


def test_the_coordinator_loads_neither_torch_nor_transformers() -> None:
    program = """
import sys
import clawrl.actors.coordinator_actor
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
