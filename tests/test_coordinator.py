"""The coordinator as plain Python: no cluster, no model, a judge that is a function."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.judging_desk import JudgeCalls
from clawrl.actors.lease_desk import EndOfTraining, Rewind
from clawrl.config import Deployment
from clawrl.messages import (
    FinishReason,
    Judgement,
    JudgeRequest,
    Lease,
    Message,
    ModelVitals,
    PolicyVersion,
    SamplingParams,
    TeacherRequest,
    TeacherTargets,
    Turn,
    TurnId,
    TurnKind,
    Verdict,
    VersionSpan,
    VitalsRequest,
    WeightKind,
    WeightManifest,
)
from clawrl.methods.registry import build_method
from clawrl.serving.feedback import FeedbackRequest
from clawrl.serving.sessions import make_arrival, reply_hash
from clawrl.weights.members import CatchUp, Outcome
from clawrl.weights.transaction import PublishFailed
from tests.live import tiny_deployment

Judging = Callable[[JudgeRequest], Awaitable[Judgement]]


async def says_good(request: JudgeRequest) -> Judgement:
    return Judgement(turn_id=request.turn_id, verdict=Verdict.GOOD, score=1.0, votes=(1,), judge="fake", seconds=0.1)


async def teaches(request: TeacherRequest) -> TeacherTargets:
    hints, tokens = len(request.hints), len(request.response_ids)
    return TeacherTargets(
        hints=request.hints,
        logps=-np.ones((hints, tokens), dtype=np.float32),
        topk_ids=np.zeros((hints, tokens, 0), dtype=np.int32),
        topk_logps=np.zeros((hints, tokens, 0), dtype=np.float32),
        teacher="fake",
    )


async def looks_well(request: VitalsRequest) -> ModelVitals:
    return ModelVitals(fluency=-1.5, on_topic_lift=0.5, kl=0.0)


class Office:
    """A coordinator on a folder, and what a client and a replica would send to it."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        settings = {"state_dir": str(folder), "trainer__training__batch_size": 2, "ledger__sweep_s": 0.05, **overrides}
        args = tiny_deployment(folder, 1, **settings)["applications"][0]["args"]
        self.deployment = Deployment.model_validate(args)

    def open(self, judge: Judging = says_good, teach: Any = teaches, vitals: Any = looks_well) -> Coordinator:
        calls = JudgeCalls(judge=judge, teach=teach, vitals=vitals)
        return Coordinator(self.deployment, build_method(self.deployment.trainer.method), calls)


def turn(name: str, messages: list[Message], reply: str, *, session: str = "s", **changes: Any) -> Turn:
    arrival = make_arrival(
        turn_id=TurnId(name),
        messages=messages,
        session=session,
        owner="o",
        kind=TurnKind.MAIN,
        ends_session=changes.pop("ends_session", False),
        arrived_at=time.time(),
    )
    fields: dict[str, Any] = {
        "reply_hash": reply_hash(arrival.messages_hash, reply),
        "response_text": reply,
        "prompt_ids": np.arange(3, 9, dtype=np.int32),
        "response_ids": np.arange(4, dtype=np.int32),
        "response_logps": -np.ones(4, dtype=np.float32),
        "spans": (VersionSpan(start=0, end=4, version=0),),
        "sampling": SamplingParams(),
        "finish_reason": FinishReason.STOP,
        "started_at": 1.0,
        "finished_at": time.time(),
        "replica": "r",
    }
    return Turn(turn_id=TurnId(name), arrival=arrival, **(fields | changes))


async def talk(coordinator: Coordinator, turns: int, session: str = "s") -> list[Turn]:
    """A conversation whose every answer but the last gets a reaction."""
    messages = [Message(role="user", content=f"hello {session}")]
    said = []
    for number in range(turns):
        answered = turn(f"{session}-{number}", messages, f"answer {number}", session=session)
        await coordinator.arrive(answered.arrival)
        await coordinator.record(answered)
        said.append(answered)
        messages = [
            *messages,
            Message(role="assistant", content=f"answer {number}"),
            Message(role="user", content="ok"),
        ]
    return said


async def until(coordinator: Coordinator, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while not condition(status := await coordinator.status()):
            await asyncio.sleep(0.01)
    return status


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
        assert status["trainer"]["last_metrics"] == {"loss": 0.5}
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
        await asyncio.wait_for(judged.wait(), 2)
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
        lease = await asyncio.wait_for(waiting, 3)
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


def test_a_published_version_is_current_and_a_late_replica_is_told_to_catch_up(tmp_path: Path) -> None:
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
        order = await coordinator.poll("late", 0, {"running": 0, "unrecorded": 3}, 3.0)
        assert order is not None and isinstance(order.command, CatchUp) and order.command.version.version == number
        await coordinator.report("late", order.number, number, Outcome(ok=True))
        assert await coordinator.poll("late", number, {"unrecorded": 3}, 0.7) is None
        status = await coordinator.status()
        assert status["version"] == number and status["unrecorded"] == 3
        assert status["versions"][0]["stats"]["committed"] == 0
        assert [(r["replica"], r["version"]) for r in status["replicas"]] == [("late", number)]
        await coordinator.close()

    asyncio.run(run())


COMBINE = {
    "trainer__method": {"name": "combine", "baseline": "none"},
    "judge__hints": {"source": "quoting", "reuse": "owner"},
}


def hinting(*hints: str, verdict: Verdict | None = Verdict.BAD) -> Judging:
    async def judge(request: JudgeRequest) -> Judgement:
        return Judgement(
            turn_id=request.turn_id, verdict=verdict, score=-1.0, votes=(), judge="fake", seconds=0.1, hints=hints
        )

    return judge


async def leased(coordinator: Coordinator, step: int = 1) -> Lease:
    lease = await coordinator.lease("run", step, 3.0)
    assert isinstance(lease, Lease)
    return lease


def test_a_hint_reaches_the_teacher_with_the_whole_request_and_its_targets_reach_the_trainer(tmp_path: Path) -> None:
    async def run() -> None:
        asked: list[TeacherRequest] = []

        async def teach(request: TeacherRequest) -> TeacherTargets:
            asked.append(request)
            return await teaches(request)

        coordinator = Office(tmp_path, **COMBINE).open(hinting("Be brief, please.", "Please be very brief."), teach)
        await coordinator.restored("run", 0)
        said = await talk(coordinator, 3)
        lease = await leased(coordinator)
        # Token-level methods hear the shortest hint only.
        assert [request.hints for request in asked] == [("Be brief, please.",)] * 2
        assert asked[1].messages == said[1].arrival.messages and len(asked[1].messages) == 3
        assert asked[1].prompt_ids.tolist() == said[1].prompt_ids.tolist()
        assert [(s.rl_mask, s.opd_mask, s.reward) for s in lease.samples] == [(True, True, -1.0)] * 2
        assert lease.samples[0].teacher is not None and lease.samples[0].teacher.teacher == "fake"
        await coordinator.close()

    asyncio.run(run())


def test_a_teacher_that_fails_leaves_the_reward_and_no_teacher(tmp_path: Path) -> None:
    async def run() -> None:
        async def broken(request: TeacherRequest) -> TeacherTargets:
            raise RuntimeError("out of chalk")

        coordinator = Office(tmp_path, **COMBINE).open(hinting("Be brief, please."), broken)
        await coordinator.restored("run", 0)
        await talk(coordinator, 3)
        lease = await leased(coordinator)
        assert [(s.rl_mask, s.opd_mask, s.teacher) for s in lease.samples] == [(True, False, None)] * 2
        await coordinator.close()

    asyncio.run(run())


def test_a_hint_teaches_even_where_the_judge_abstained(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **COMBINE).open(hinting("Be brief, please.", verdict=None))
        await coordinator.restored("run", 0)
        await talk(coordinator, 3)
        lease = await leased(coordinator)
        assert [(s.rl_mask, s.opd_mask, s.reward) for s in lease.samples] == [(False, True, 0.0)] * 2
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize(("reuse", "taught"), [("owner", True), ("session", False), ("off", False)])
def test_a_known_hint_also_teaches_later_accepted_turns_as_far_as_configured(
    tmp_path: Path, reuse: str, taught: bool
) -> None:
    async def run() -> None:
        async def judge(request: JudgeRequest) -> Judgement:
            first = request.turn_id.startswith("first")
            return await (hinting("Be brief, please.") if first else says_good)(request)

        office = Office(tmp_path, **{**COMBINE, "judge__hints": {"source": "quoting", "reuse": reuse}})
        coordinator = office.open(judge)
        await coordinator.restored("run", 0)
        await talk(coordinator, 2, "first")
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 1)
        await talk(coordinator, 2, "second")
        lease = await leased(coordinator)
        assert [s.opd_mask for s in lease.samples] == [True, taught]
        assert [s.reward for s in lease.samples] == [-1.0, 1.0]
        await coordinator.close()

    asyncio.run(run())


def score_of(turn_id: str | None = None, *, session: str | None = None, score: float, comment: str = "") -> Any:
    return FeedbackRequest(turn_id=turn_id, session=session, score=score, comment=comment)


def test_feedback_outranks_the_judge_and_its_comment_is_evidence(tmp_path: Path) -> None:
    async def run() -> None:
        cases: list[JudgeRequest] = []

        async def judge(request: JudgeRequest) -> Judgement:
            cases.append(request)
            return await says_good(request)

        coordinator = Office(tmp_path).open(judge)
        await coordinator.restored("run", 0)
        await talk(coordinator, 3)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
        taken = await coordinator.feedback(score_of("s-0", score=-0.5, comment="Too formal."), "o")
        assert taken is not None and taken["outcome"] == "taken"
        newest = await coordinator.feedback(score_of(session="s", score=1.0), "o")
        assert newest is not None and newest["turn_id"] == "s-2"
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 3)
        lease = await leased(coordinator)
        assert {s.turn_id: s.reward for s in lease.samples} == {"s-0": -0.5, "s-1": 1.0}
        assert [m.content for m in cases[-2].evidence if m.content == "Too formal."] or cases[-1].evidence
        assert any(case.feedback and case.evidence[-1].content == "Too formal." for case in cases)
        await coordinator.close()

    asyncio.run(run())


def test_feedback_counts_though_the_judge_is_out_of_order(tmp_path: Path) -> None:
    async def run() -> None:
        async def broken(request: JudgeRequest) -> Judgement:
            raise RuntimeError("out of order")

        coordinator = Office(tmp_path, judge__verdict__backoff_s=0.0).open(broken)
        await coordinator.restored("run", 0)
        await talk(coordinator, 1)
        await talk(coordinator, 1, "t")
        await coordinator.feedback(score_of("s-0", score=1.0), "o")
        await coordinator.feedback(score_of("t-0", score=-1.0), "o")
        assert sorted(s.reward for s in (await leased(coordinator)).samples) == [-1.0, 1.0]
        await coordinator.close()

    asyncio.run(run())


def test_feedback_replaces_the_case_that_is_being_judged(tmp_path: Path) -> None:
    async def run() -> None:
        async def slow(request: JudgeRequest) -> Judgement:
            if request.feedback is None:
                await asyncio.sleep(3600)
            return await says_good(request)

        coordinator = Office(tmp_path).open(slow)
        await talk(coordinator, 2)
        await until(coordinator, lambda s: s["turns"]["by_state"].get("judging") == 1)
        await coordinator.feedback(score_of("s-0", score=-1.0), "o")
        await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 1)
        (row,) = [row for row in await coordinator.turns(10) if row["turn_id"] == "s-0"]
        assert row["verdict"] == -1 and row["reward"] == -1.0
        await coordinator.close()

    asyncio.run(run())


def test_nobody_speaks_about_another_owners_turn(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        await talk(coordinator, 1)
        assert await coordinator.feedback(score_of("s-0", score=1.0), "somebody else") is None
        assert await coordinator.feedback(score_of("never served", score=1.0), "o") is None
        assert await coordinator.feedback(score_of(session="never opened", score=1.0), "o") is None
        await coordinator.close()

    asyncio.run(run())


def refuses_answer_1(turn: Turn) -> str | None:
    return "not this one" if turn.response_text == "answer 1" else None


@pytest.mark.parametrize(
    ("filters", "reason", "count"),
    [
        ({"min_response_tokens": 5}, "too_short", 3),
        ({"extra": [f"{__name__}:refuses_answer_1"]}, "refused_by_filter", 1),
    ],
)
def test_filtered_turns_are_dropped_with_their_reason(
    tmp_path: Path, filters: dict[str, Any], reason: str, count: int
) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, guards__filters=filters).open()
        await talk(coordinator, 3)
        assert (await coordinator.status())["turns"]["dropped"] == {reason: count}
        await coordinator.close()

    asyncio.run(run())


def test_the_same_answer_to_the_same_request_trains_once(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path).open()
        hello = [Message(role="user", content="hello")]
        await coordinator.record(turn("a", hello, "hi"))
        await coordinator.record(turn("b", hello, "hi", session="another"))
        await coordinator.record(turn("c", hello, "hello"))
        assert (await coordinator.status())["turns"]["dropped"] == {"duplicate": 1}
        await coordinator.close()

    asyncio.run(run())


ALARMS = {"guards__alarms": {"window": 8, "min_turns": 4, "probe_every": 1}, "guards__filters": {"duplicates": "keep"}}


def version(number: int, folder: Path) -> PolicyVersion:
    snapshot = folder / f"snapshot{number}"
    snapshot.mkdir(exist_ok=True)
    return PolicyVersion(version=number, step=number, snapshot=str(snapshot), digest=f"d{number}", published_at=1.0)


async def serve_version(coordinator: Coordinator, number: int, *, text: str, turns: int = 8) -> None:
    """Answers of one version, each to a question of its own."""
    tokens = len(text.split())
    for i in range(turns):
        name = f"v{number}-{i}"
        await coordinator.record(
            turn(
                name,
                [Message(role="user", content=f"question {name}")],
                f"{text} {name}",
                session=name,
                response_ids=np.arange(tokens, dtype=np.int32),
                response_logps=-np.ones(tokens, dtype=np.float32),
                spans=(VersionSpan(start=0, end=tokens, version=number),),
            )
        )


def test_an_alarm_freezes_learning_and_serves_the_last_good_version_again(tmp_path: Path) -> None:
    async def run() -> None:
        office = Office(tmp_path, **ALARMS)
        coordinator = office.open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        for number in (1, 2):
            await coordinator._decide(version(number, tmp_path))
            await serve_version(coordinator, number, text=SOUND)
        await until(coordinator, lambda s: s["guards"]["good_version"] == 2)
        await coordinator._decide(version(3, tmp_path))
        await serve_version(coordinator, 3, text="no")
        status = await until(coordinator, lambda s: s["version"] == 4)
        assert status["paused"] and "clawrl resume" in status["pause_reason"]
        assert status["guards"]["alarm"]["name"] in ("share_short", "mean_tokens")
        again = await coordinator.current_version()
        assert (
            again is not None and again.snapshot == str(tmp_path / "snapshot2") and again.stats["rolled_back_to"] == 2
        )
        assert str(tmp_path / "snapshot2") in await coordinator.snapshots_in_use()

        manifest = WeightManifest(version=5, kind=WeightKind.FULL, tensors=(), buckets=(), digest="d")
        with pytest.raises(PublishFailed, match="rewind"):
            await coordinator.begin_publish("run", manifest, 4, "/snapshots/bad", "127.0.0.1", 1)
        order = await coordinator.lease("run", 4, 0.05)
        assert isinstance(order, Rewind) and order.version == again
        await coordinator.close()

        # The trainer may have died before it went back: a restart tells it again, until it says that it did.
        coordinator = office.open()
        assert isinstance(await coordinator.lease("run", 4, 0.05), Rewind)
        await coordinator.rewound("run", again.version)
        assert await coordinator.lease("run", 4, 0.05) is None
        await coordinator.resume()
        assert not (await coordinator.status())["paused"]
        await coordinator.close()

    asyncio.run(run())


SOUND = "an answer of quite a few words that nobody would call short"


def test_without_a_later_good_version_the_start_serves_again(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        await coordinator._decide(version(1, tmp_path))
        await serve_version(coordinator, 1, text="no")
        status = await until(coordinator, lambda s: s["paused"] and s["version"] == 2)
        assert status["versions"][0]["stats"]["rolled_back_to"] == 0
        await coordinator.close()

    asyncio.run(run())


def test_a_good_version_whose_snapshot_is_gone_is_passed_over(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        for number in (1, 2):
            await coordinator._decide(version(number, tmp_path))
            await serve_version(coordinator, number, text=SOUND)
        await until(coordinator, lambda s: s["guards"]["good_version"] == 2)
        (tmp_path / "snapshot2").rmdir()
        await coordinator._decide(version(3, tmp_path))
        await serve_version(coordinator, 3, text="no")
        status = await until(coordinator, lambda s: s["version"] == 4)
        assert status["versions"][0]["stats"]["rolled_back_to"] == 1
        await coordinator.close()

    asyncio.run(run())


def test_an_alarm_with_nothing_to_go_back_to_freezes_learning_and_publishing(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await coordinator.restored("run", 0)
        await serve_version(coordinator, 0, text=SOUND)
        await coordinator._decide(version(1, tmp_path))
        await serve_version(coordinator, 1, text="no")
        status = await until(coordinator, lambda s: s["paused"])
        assert status["version"] == 1 and status["guards"]["alarm"]["version"] == 1
        with pytest.raises(PublishFailed, match="froze"):
            await coordinator.next_version()
        await coordinator.resume()
        assert await coordinator.next_version() == 2
        await coordinator.close()

    asyncio.run(run())


def test_an_alarm_that_a_crash_kept_from_taking_effect_takes_effect_at_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        office = Office(tmp_path, **ALARMS)
        coordinator = office.open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        await coordinator._decide(version(1, tmp_path))

        async def dies(*_: Any) -> None:
            raise RuntimeError("killed")

        coordinator._health._freeze = dies  # type: ignore[method-assign]
        await serve_version(coordinator, 1, text="no")
        await until(coordinator, lambda s: s["guards"]["alarm"] is not None)
        assert not (await coordinator.status())["paused"]
        await coordinator.close()

        coordinator = office.open()
        await coordinator._health.freeze_if_alarmed()
        status = await coordinator.status()
        assert status["paused"] and status["guards"]["alarm"] is not None and status["version"] == 2
        await coordinator.close()

    asyncio.run(run())


def test_a_run_that_restores_a_checkpoint_from_before_the_rollback_goes_back_again(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await coordinator.restored("run", 0)
        await coordinator.start_version("run", version(0, tmp_path))
        await serve_version(coordinator, 0, text=SOUND)
        await coordinator._decide(version(1, tmp_path))
        await serve_version(coordinator, 1, text="no")
        await until(coordinator, lambda s: s["version"] == 2)
        await coordinator.rewound("run", 2)
        assert await coordinator.lease("run", 1, 0.05) is None
        await coordinator.restored("another run", 0, 2)
        assert await coordinator.lease("another run", 1, 0.05) is None, "its checkpoint has gone back already"
        await coordinator.restored("a third run", 0, 0)
        assert isinstance(await coordinator.lease("a third run", 1, 0.05), Rewind)
        await coordinator.close()

    asyncio.run(run())


def test_the_frozen_model_compares_with_the_prompt_of_another_conversation(tmp_path: Path) -> None:
    async def run() -> None:
        asked: list[VitalsRequest] = []

        async def vitals(request: VitalsRequest) -> ModelVitals:
            asked.append(request)
            return await looks_well(request)

        coordinator = Office(tmp_path, **ALARMS).open(vitals=vitals)
        for name, session, first in (("a", "s", 10), ("b", "s", 20), ("c", "t", 30), ("d", "t", 40)):
            prompt = np.arange(first, first + 3, dtype=np.int32)
            messages = [Message(role="user", content=name)]
            await coordinator.record(turn(name, messages, f"answer {name}", session=session, prompt_ids=prompt))
        await until(coordinator, lambda _: len(asked) == 2)
        await asyncio.sleep(0.05)
        # The first two have nobody else's prompt to be compared with.
        assert [(r.turn_id, int(r.other_prompt_ids[0])) for r in asked] == [("c", 20), ("d", 20)]
        await coordinator.close()

    asyncio.run(run())


def never_answers(turn: Turn) -> str | None:
    time.sleep(0.3)
    return None


def test_a_filter_that_takes_too_long_refuses_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("clawrl.actors.admission._FILTER_TIMEOUT_S", 0.05)
        coordinator = Office(tmp_path, guards__filters={"extra": [f"{__name__}:never_answers"]}).open()
        recording = asyncio.create_task(talk(coordinator, 1))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(0.25):
            await coordinator.status()
        await recording
        assert (await coordinator.status())["turns"]["dropped"] == {"refused_by_filter": 1}
        await coordinator.close()

    asyncio.run(run())
