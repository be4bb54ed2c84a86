"""A coordinator as plain Python for tests, and what a client, a judge and a replica would send to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.judging_desk import JudgeCalls
from clawrl.config import Deployment
from clawrl.messages import (
    FinishReason,
    Judgement,
    JudgeRequest,
    Message,
    ModelVitals,
    SamplingParams,
    TeacherRequest,
    TeacherTargets,
    Turn,
    TurnId,
    TurnKind,
    Verdict,
    VersionSpan,
    VitalsRequest,
)
from clawrl.methods.registry import build_method
from clawrl.serving.sessions import answer_hash, make_arrival, reply_hash
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
    said = Message(role="assistant", content=reply)
    fields: dict[str, Any] = {
        "reply_hash": reply_hash(arrival.messages_hash, said),
        "answer_hash": answer_hash(said),
        "answer": said,
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
    async with asyncio.timeout(120):
        while not condition(status := await coordinator.status()):
            await asyncio.sleep(0.01)
    return status
