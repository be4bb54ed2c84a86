"""Filters and alarms in the coordinator: what is kept out, what freezes learning, what serves again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.lease_desk import Rewind
from clawrl.messages import (
    FinishReason,
    Lease,
    Message,
    ModelVitals,
    PolicyVersion,
    Turn,
    VersionSpan,
    VitalsRequest,
    WeightKind,
    WeightManifest,
)
from clawrl.weights.transaction import PublishFailed
from tests.office import (
    Office,
    looks_well,
    talk,
    turn,
    until,
)


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


SOUND = "an answer of quite a few words that nobody would call short"
ALARMS = {"guards__alarms": {"window": 8, "min_turns": 4, "probe_every": 1}, "guards__filters": {"duplicates": "keep"}}


def version(number: int, folder: Path) -> PolicyVersion:
    snapshot = folder / f"snapshot{number}"
    snapshot.mkdir(exist_ok=True)
    return PolicyVersion(version=number, step=number, snapshot=str(snapshot), digest=f"d{number}", published_at=1.0)


async def serve_version(
    coordinator: Coordinator,
    number: int,
    *,
    text: str,
    turns: int = 8,
    finish: FinishReason = FinishReason.STOP,
    when: str = "",
) -> None:
    """Answers of one version, each to a question of its own; ``when`` tells apart what it answers again."""
    tokens = len(text.split())
    for i in range(turns):
        name = f"v{number}{when}-{i}"
        await coordinator.record(
            turn(
                name,
                [Message(role="user", content=f"question {name}")],
                f"{text} {name}",
                session=name,
                response_ids=np.arange(tokens, dtype=np.int32),
                response_logps=-np.ones(tokens, dtype=np.float32),
                spans=(VersionSpan(start=0, end=tokens, version=number),),
                finish_reason=finish,
            )
        )


async def serve_the_start(coordinator: Coordinator, folder: Path) -> None:
    """A training run begins, and version 0 answers soundly."""
    await coordinator.restored("run", 0)
    await coordinator.start_version("run", version(0, folder))
    await serve_version(coordinator, 0, text=SOUND)


async def serve_two_good_versions(coordinator: Coordinator, folder: Path) -> None:
    """The start, then versions 1 and 2, each of which was found to be good."""
    await serve_the_start(coordinator, folder)
    for number in (1, 2):
        await coordinator._decide(version(number, folder))
        await serve_version(coordinator, number, text=SOUND)
    await until(coordinator, lambda s: s["guards"]["good_version"] == 2)


def test_the_snapshot_before_the_newest_good_one_stays_since_late_turns_may_show_that_one_to_be_bad(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        office = Office(tmp_path, **ALARMS)
        coordinator = office.open()
        await serve_two_good_versions(coordinator, tmp_path)
        await coordinator._decide(version(3, tmp_path))
        assert {str(tmp_path / f"snapshot{kept}") for kept in range(4)} == set(await coordinator.snapshots_in_use())
        # Turns of version 2 that had begun before end now, and are bad.
        await serve_version(coordinator, 2, text="no", when="late")
        await until(coordinator, lambda s: s["version"] == 4)
        again = await coordinator.current_version()
        assert again is not None and again.stats["rolled_back_to"] == 1
        await coordinator.close()

    asyncio.run(run())


def test_an_alarm_freezes_learning_and_serves_the_last_good_version_again(tmp_path: Path) -> None:
    async def run() -> None:
        office = Office(tmp_path, **ALARMS)
        coordinator = office.open()
        await serve_two_good_versions(coordinator, tmp_path)
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


def test_what_the_version_that_was_rolled_back_to_answers_is_not_too_old_to_train(tmp_path: Path) -> None:
    async def run() -> None:
        on_policy = {"trainer__training__staleness": {"max_steps": 0}}
        coordinator = Office(tmp_path, **ALARMS, **on_policy).open()
        await serve_two_good_versions(coordinator, tmp_path)
        await coordinator._decide(version(3, tmp_path))
        await serve_version(coordinator, 3, text="no", turns=4)
        await until(coordinator, lambda s: s["version"] == 4)
        # Two steps after the one that went wrong, of which nothing was published.
        await coordinator.checkpointed("run", 5)
        await coordinator.rewound("run", 4)
        await coordinator.resume()
        tokens = {
            "spans": (VersionSpan(start=0, end=9, version=4),),
            "response_ids": np.arange(9, dtype=np.int32),
            "response_logps": -np.ones(9, dtype=np.float32),
        }
        for name in ("x", "y"):
            asked = [Message(role="user", content=name)]
            await coordinator.record(turn(name, asked, SOUND, session=name, **tokens))
            answered = Message(role="assistant", content=SOUND)
            said = [*asked, answered, Message(role="user", content="ok")]
            await coordinator.arrive(turn(f"{name}-next", said, "hi", session=name).arrival)
        order = await coordinator.lease("run", 6, 5.0)
        assert isinstance(order, Lease) and {sample.turn_id for sample in order.samples} == {"x", "y"}
        await coordinator.close()

    asyncio.run(run())


def test_without_a_later_good_version_the_start_serves_again(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await serve_the_start(coordinator, tmp_path)
        await coordinator._decide(version(1, tmp_path))
        await serve_version(coordinator, 1, text="no")
        status = await until(coordinator, lambda s: s["paused"] and s["version"] == 2)
        assert status["versions"][0]["stats"]["rolled_back_to"] == 0
        await coordinator.close()

    asyncio.run(run())


def test_a_good_version_whose_snapshot_is_gone_is_passed_over(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await serve_two_good_versions(coordinator, tmp_path)
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


def test_answers_that_a_client_cut_to_a_word_are_not_the_policys_doing(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path, **ALARMS).open()
        await serve_the_start(coordinator, tmp_path)
        for number, text in ((1, "no"), (2, SOUND)):
            await coordinator._decide(version(number, tmp_path))
            await serve_version(coordinator, number, text=text, finish=FinishReason.LENGTH)
        status = await until(coordinator, lambda s: s["guards"]["good_version"] == 2)
        assert status["guards"]["alarm"] is None and status["guards"]["figures"]["share_short"] == 0.0
        await coordinator.close()

    asyncio.run(run())


def test_an_alarm_that_a_crash_kept_from_taking_effect_takes_effect_at_the_next_start(tmp_path: Path) -> None:
    async def run() -> None:
        office = Office(tmp_path, **ALARMS)
        coordinator = office.open()
        await serve_the_start(coordinator, tmp_path)
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
        await serve_the_start(coordinator, tmp_path)
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


ASKED, LEAVE = threading.Event(), threading.Event()


def never_answers(turn: Turn) -> str | None:
    ASKED.set()
    LEAVE.wait(120.0)
    return None


def test_a_filter_that_takes_too_long_refuses_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("clawrl.actors.admission._FILTER_TIMEOUT_S", 0.05)
        coordinator = Office(tmp_path, guards__filters={"extra": [f"{__name__}:never_answers"]}).open()
        recording = asyncio.create_task(talk(coordinator, 1))
        async with asyncio.timeout(100.0):
            while not ASKED.is_set():
                await asyncio.sleep(0.001)
            await coordinator.status()
            await recording
        LEAVE.set()
        assert (await coordinator.status())["turns"]["dropped"] == {"refused_by_filter": 1}
        await coordinator.close()

    asyncio.run(run())
