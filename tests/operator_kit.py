"""What the tests of operating share: turns brought to every state and every drop reason through the real code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.generation import Refused
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import (
    DropReason,
    FinishReason,
    Judgement,
    JudgeRequest,
    Message,
    PolicyVersion,
    SamplingParams,
    TeacherRequest,
    Turn,
    TurnKind,
    Verdict,
)
from clawrl.privacy.forgetting import Wanted
from clawrl.weights.kept import snapshot_name
from tests.office import Office, says_good, talk, teaches, turn, until

HELLO = [Message(role="user", content="hello")]
ALL = TurnFilter()


async def look(coordinator: Coordinator, view: str, *arguments: Any) -> Any:
    answer = await coordinator.operator(view, *arguments)
    assert not isinstance(answer, Refused), answer
    return json.loads(json.dumps(answer, allow_nan=False))


async def refused(coordinator: Coordinator, view: str, *arguments: Any) -> Any:
    answer = await coordinator.operator(view, *arguments)
    assert isinstance(answer, Refused)
    return answer.error


def kept_version(number: int, folder: Path, step: int | None = None) -> PolicyVersion:
    """A version whose snapshot is on disk, as far as a look at it tells."""
    digest = f"{number:064x}"
    snapshot = folder / "snapshots" / snapshot_name(number, digest)
    snapshot.mkdir(parents=True, exist_ok=True)
    (snapshot / "manifest.json").write_text(json.dumps({"version": number, "addition": None}))
    made_by = number if step is None else step
    return PolicyVersion(version=number, step=made_by, snapshot=str(snapshot), digest=digest, published_at=1.0)


async def with_versions(coordinator: Coordinator, folder: Path, newest: int) -> None:
    """A run has published versions up to ``newest``, each of a step of its own."""
    await coordinator.restored("run", 0)
    await coordinator.start_version("run", kept_version(0, folder))
    for number in range(1, newest + 1):
        await coordinator._decide(kept_version(number, folder))
    await coordinator.checkpointed("run", newest)


async def abstains(request: JudgeRequest) -> Judgement:
    raise RuntimeError("the judge is out to lunch")


async def is_neutral(request: JudgeRequest) -> Judgement:
    return replace(await says_good(request), verdict=Verdict.NEUTRAL)


async def gives_no_hint(request: JudgeRequest) -> Judgement:
    return replace(await says_good(request), hints=())


async def hints(request: JudgeRequest) -> Judgement:
    return replace(await says_good(request), hints=("be brief",))


async def teaches_nothing(request: TeacherRequest) -> Any:
    raise RuntimeError("the teacher is ill")


def refuses_all(turn: Turn) -> str | None:
    return f"not this one: {turn.response_text}"


def one(name: str = "t", reply: str = "an answer", **changes: Any) -> Turn:
    return turn(name, HELLO, reply, **changes)


def arriving(made: Turn, **changes: Any) -> Turn:
    return replace(made, arrival=replace(made.arrival, **changes))


Life = Callable[[Coordinator], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """How a turn comes to be dropped for ``reason``: ``live`` returns its id. ``says`` is in the explanation."""

    reason: DropReason
    live: Life
    says: str
    settings: dict[str, Any] = field(default_factory=dict)
    judge: Any = says_good
    teach: Any = teaches


def recorded(make: Callable[[], Turn]) -> Life:
    async def live(coordinator: Coordinator) -> str:
        made = make()
        await coordinator.record(made)
        return made.turn_id

    return live


async def talked(coordinator: Coordinator) -> str:
    await talk(coordinator, 2)
    return "s-0"


async def forgotten(coordinator: Coordinator) -> str:
    """It waited for a word when its owner asked for it to be deleted."""
    await coordinator.record(one())
    await coordinator.forget(Wanted(turn_id="t"))
    return "t"


async def ended(coordinator: Coordinator) -> str:
    await coordinator.record(one())
    await coordinator.end_session("o", "s")
    return "t"


async def twice(coordinator: Coordinator) -> str:
    await coordinator.record(one("first"))
    await coordinator.record(one("t", session="another"))
    return "t"


async def grown_old(coordinator: Coordinator) -> str:
    """Judged, and then four steps were taken without it."""
    await coordinator.restored("run", 0)
    await talk(coordinator, 2)
    await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 1)
    await coordinator.checkpointed("run", 4)
    await coordinator.lease("run", 5, 0.05)
    return "s-0"


def opd() -> dict[str, Any]:
    return {"trainer__method": {"name": "opd"}, "judge__hints": {"source": "quoting"}}


DROPS = (
    Dropped(
        reason=DropReason.SIDE,
        live=recorded(lambda: arriving(one(), kind=TurnKind.SIDE)),
        says="X-Turn-Type",
    ),
    Dropped(
        reason=DropReason.ABORTED,
        live=recorded(lambda: one(finish_reason=FinishReason.ABORTED)),
        says="after 4 tokens",
    ),
    Dropped(
        reason=DropReason.FAILED,
        live=recorded(lambda: one(finish_reason=FinishReason.ERROR)),
        says="Rollout deployment",
    ),
    Dropped(reason=DropReason.EMPTY, live=recorded(lambda: one(reply=" ")), says="no word"),
    Dropped(
        reason=DropReason.GREEDY,
        live=recorded(lambda: one(sampling=SamplingParams(temperature=0.0))),
        says="serving.sampling.override",
    ),
    Dropped(
        reason=DropReason.FILTERED,
        live=recorded(lambda: one(sampling=SamplingParams(top_p=0.9, top_k=7))),
        says="top_p 0.9, top_k 7",
    ),
    Dropped(
        reason=DropReason.NOT_PERMITTED,
        live=recorded(lambda: arriving(one(), may_train=False)),
        says="did not permit",
    ),
    Dropped(
        reason=DropReason.REDACTED,
        live=recorded(lambda: one(reply="your key is sk-" + "a1B2c3D4" * 6)),
        says="privacy.redaction found something",
    ),
    Dropped(reason=DropReason.FORGOTTEN, live=forgotten, says="`clawrl forget`"),
    Dropped(
        reason=DropReason.TOO_LONG,
        live=recorded(lambda: one(prompt_ids=np.arange(600, dtype=np.int32))),
        says="604 tokens, more than the 512",
    ),
    Dropped(reason=DropReason.SESSION_ENDED, live=ended, says="clawrl feedback --turn t"),
    Dropped(
        reason=DropReason.NO_EVIDENCE,
        live=recorded(one),
        says="within 0.1 s",
        settings={"ledger__idle_timeout_s": 0.1},
    ),
    Dropped(
        reason=DropReason.JUDGE_ABSTAINED,
        live=talked,
        says="the judge is out to lunch",
        settings={"judge__verdict": {"attempts": 1}},
        judge=abstains,
    ),
    Dropped(reason=DropReason.NEUTRAL, live=talked, says="neither good nor bad (score 1.00)", judge=is_neutral),
    Dropped(
        reason=DropReason.NO_HINT,
        live=talked,
        says="the method opd learns from hints",
        settings=opd(),
        judge=gives_no_hint,
    ),
    Dropped(
        reason=DropReason.TEACHER_FAILED,
        live=talked,
        says="There was a hint, but the teacher did not answer in 1 attempts",
        settings={**opd(), "judge__teacher": {"attempts": 1}},
        judge=hints,
        teach=teaches_nothing,
    ),
    Dropped(
        reason=DropReason.TOO_SHORT,
        live=recorded(one),
        says="4 tokens, min_response_tokens is 9",
        settings={"guards__filters": {"min_response_tokens": 9}},
    ),
    Dropped(
        reason=DropReason.TRUNCATED,
        live=recorded(lambda: one(finish_reason=FinishReason.LENGTH)),
        says="cut off after 4 tokens",
        settings={"guards__filters": {"truncated": "drop"}},
    ),
    Dropped(
        reason=DropReason.REPETITIVE,
        live=recorded(lambda: one(reply="again and " * 200)),
        says="compresses to 0.0",
    ),
    Dropped(reason=DropReason.DUPLICATE, live=twice, says="less than 3600 s before"),
    Dropped(
        reason=DropReason.REFUSED_BY_FILTER,
        live=recorded(one),
        says=f"refused it, {__name__}:refuses_all: not this one: an answer.",
        settings={"guards__filters": {"extra": [f"{__name__}:refuses_all"]}},
    ),
    Dropped(
        reason=DropReason.STALE,
        live=grown_old,
        says="version 0 is 4 batches behind, and the limit is a lag of 0",
        settings={"trainer__training__staleness": {"max_steps": 0}},
    ),
    Dropped(
        reason=DropReason.MALFORMED,
        live=talked,
        says="could not make a sample of it: ValueError('I make nothing').",
        settings={"trainer__method": {"name": f"{__name__}:MakesNothing"}},
    ),
)
"""One way to each drop reason, through the coordinator as it runs."""


def _makes_nothing() -> Any:
    from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig

    class Config(BinaryRLConfig):
        name: str = f"{__name__}:MakesNothing"  # type: ignore[assignment]

    class Made(BinaryRL):
        def sample(self, turn: Turn, judgement: Judgement, teacher: Any) -> Any:
            raise ValueError("I make nothing")

    Made.Config = Config  # type: ignore[misc]
    return Made


MakesNothing = _makes_nothing()


async def drop(folder: Path, case: Dropped) -> tuple[Coordinator, str]:
    """A coordinator in which a turn has just been dropped, and that turn."""
    coordinator = Office(folder, **case.settings).open(judge=case.judge, teach=case.teach)
    turn_id = await case.live(coordinator)
    await until(coordinator, lambda s: case.reason.value in s["turns"]["dropped"])
    return coordinator, turn_id


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(240):
            await test()

    asyncio.run(bounded())
