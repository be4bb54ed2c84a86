"""Hints, teachers and a person's feedback on their way through the coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import (
    Judgement,
    JudgeRequest,
    Lease,
    TeacherRequest,
    TeacherTargets,
    Verdict,
)
from clawrl.serving.feedback import FeedbackRequest
from tests.office import (
    Judging,
    Office,
    says_good,
    talk,
    teaches,
    until,
)

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
        rows = await coordinator.operator("turns", TurnFilter(), None, 10)
        (row,) = [row for row in rows if row["turn_id"] == "s-0"]
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
