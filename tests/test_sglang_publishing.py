"""Weights change under a real SGLang: spans are exact, prefixes are computed anew, and a failure costs only a hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clawrl.engine.errors import WeightsRefused
from clawrl.engine.protocol import GenerateRequest, ScoreRequest
from clawrl.engine.sglang import SglangEngine
from clawrl.messages import FinishReason
from tests.engine_tools import Answer, Drain, cold_model_logps, generate, request
from tests.sglang_kit import Loop, Publisher, cold_model, needs_sglang, other_weights, running_sglang

pytestmark = needs_sglang
PROMPT = list(range(20, 60))
Running = tuple[Loop, SglangEngine]


@pytest.fixture
def running(tiny_sglang: Running) -> Running:
    return tiny_sglang


@pytest.fixture
def folder(tiny_qwen3_folder: Path) -> Path:
    return tiny_qwen3_folder


@pytest.fixture
def publisher(running: Running, tmp_path: Path) -> Publisher:
    return Publisher(running[1], tmp_path)


def spans_of(answer: Answer) -> list[tuple[int, int, int]]:
    return [(span.start, span.end, span.version) for span in answer.chunks[-1].spans or ()]


def long_one(tokens: int = 450) -> GenerateRequest:
    """Greedy, so that no end token comes by chance: these weights never choose it."""
    return request(PROMPT, max_tokens=tokens, temperature=0.0)


async def publish_under_way(engine: SglangEngine, publisher: Publisher, version: int, tensors: Any) -> Answer:
    answering = Drain(engine, long_one())
    await answering.more(20)
    await publisher.publish(version, tensors)
    return await answering.answer()


def greedy_logps(model: torch.nn.Module, answer: Answer) -> np.ndarray:
    return cold_model_logps(model, answer, 1.0)


def test_a_publish_in_the_middle_of_an_answer_gives_the_spans_that_cold_engines_agree_with(
    running: Running, publisher: Publisher, folder: Path
) -> None:
    loop, engine = running
    for seed in (1, 12, 13):
        start, tensors = engine.version, other_weights(folder, seed)
        before = cold_model(folder) if start == 0 else None
        answer = loop.run(publish_under_way(engine, publisher, start + 1, tensors))
        # SGLang does not wait for us: where this process was held up, the answer was over before the publish.
        if len(spans_of(answer)) > 1:
            break
    after = cold_model(folder, tensors)
    (first, second) = spans_of(answer)
    assert first[2] == start and second == (first[1], len(answer.ids), start + 1) and first[1] > 0
    cold = greedy_logps(after, answer)
    np.testing.assert_allclose(answer.logps[first[1] :], cold[first[1] :], atol=1e-4)
    if before is not None:
        np.testing.assert_allclose(answer.logps[: first[1]], greedy_logps(before, answer)[: first[1]], atol=1e-4)
    # And the tokens are those which a cold engine with the new weights would go on with.
    ids = [*PROMPT, *answer.ids[: first[1]].tolist()]
    with torch.no_grad():
        for token in answer.ids[first[1] : first[1] + 20].tolist():
            assert int(after(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


def test_a_prefix_that_was_cached_before_a_publish_is_computed_anew_after_it(
    running: Running, publisher: Publisher, folder: Path
) -> None:
    loop, engine = running
    loop.run(generate(engine, PROMPT, max_tokens=20, temperature=0.0))
    tensors = other_weights(folder, 2)
    loop.run(publisher.publish(engine.version + 1, tensors))
    answer = loop.run(generate(engine, PROMPT, max_tokens=30, temperature=1.0))
    np.testing.assert_allclose(answer.logps, cold_model_logps(cold_model(folder, tensors), answer), atol=1e-4)
    assert {version for _, _, version in spans_of(answer)} == {engine.version}


def test_a_version_from_disk_is_as_one_that_was_sent(running: Running, publisher: Publisher, folder: Path) -> None:
    loop, engine = running
    tensors = other_weights(folder, 3)
    loop.run(publisher.from_disk(engine.version + 1, tensors))
    report = loop.run(engine.commit(engine.version + 1))
    assert report.hold_s > 0 and engine.version == report.version
    answer = loop.run(generate(engine, PROMPT, max_tokens=30, temperature=1.0))
    np.testing.assert_allclose(answer.logps, cold_model_logps(cold_model(folder, tensors), answer), atol=1e-4)


@pytest.mark.parametrize("stop_after", [0, 1])
def test_a_trainer_that_dies_in_the_middle_leaves_the_old_version_answering(
    running: Running, publisher: Publisher, folder: Path, stop_after: int
) -> None:
    loop, engine = running
    served = other_weights(folder, 4)
    version = engine.version + 1
    loop.run(publisher.publish(version, served))
    failures = engine.stats()["failed_loads"]

    async def story() -> Answer:
        answering = Drain(engine, long_one())
        await answering.more(20)
        with pytest.raises(WeightsRefused):
            await publisher.by_broadcast(version + 1, other_weights(folder, 5), stop_after=stop_after)
        return await answering.answer()

    answer = loop.run(story())
    assert engine.version == version and spans_of(answer) == [(0, 450, version)]
    np.testing.assert_allclose(answer.logps, greedy_logps(cold_model(folder, served), answer), atol=1e-4)
    assert engine.stats()["failed_loads"] == failures + 1 and engine.stats()["last_failed_load"]["hold_ms"] > 0
    engine.health()
    loop.run(publisher.publish(version + 2, other_weights(folder, 6)))
    assert engine.version == version + 2


def test_a_byte_that_changed_on_the_way_is_noticed_and_the_weights_are_taken_back(
    running: Running, publisher: Publisher, folder: Path
) -> None:
    loop, engine = running
    served = other_weights(folder, 7)
    version = engine.version + 1
    loop.run(publisher.publish(version, served))
    with pytest.raises(WeightsRefused, match=r"1 of SGLang's parameters are not what was published"):
        loop.run(publisher.by_broadcast(version + 1, other_weights(folder, 8), flipped=True))
    answer = loop.run(generate(engine, PROMPT, max_tokens=20, temperature=1.0))
    np.testing.assert_allclose(answer.logps, cold_model_logps(cold_model(folder, served), answer), atol=1e-4)
    engine.health()


def test_a_schema_that_is_being_compiled_does_not_keep_a_publish_from_happening(
    running: Running, publisher: Publisher, folder: Path
) -> None:
    """SGLang forgets no prefix while a grammar waits, and compiles none while it is held."""
    loop, engine = running

    def schema(number: int) -> str:
        names = {f"field_{number}_{i}": {"type": "string", "pattern": f"^[a-z]{{1,{5 + i}}}$"} for i in range(12)}
        return json.dumps({"type": "object", "properties": names, "required": list(names)})

    async def story() -> None:
        for number in range(6):
            asked = [
                asyncio.create_task(generate(engine, PROMPT, max_tokens=8, json_schema=schema(4 * number + i)))
                for i in range(4)
            ]
            await asyncio.sleep(0.01 * number)
            await publisher.publish(engine.version + 1, other_weights(folder, 20 + number % 2))
            assert all(len(answer.ids) for answer in await asyncio.gather(*asked))

    loop.run(story())
    engine.health()


def test_twenty_publishes_under_load_fail_no_request(
    running: Running, publisher: Publisher, folder: Path, record_property: Any
) -> None:
    loop, engine = running
    versions = [other_weights(folder, seed) for seed in (10, 11)]
    start = engine.version

    async def user(done: asyncio.Event, answers: list[Answer]) -> None:
        while not done.is_set():
            answers.append(await generate(engine, PROMPT, max_tokens=12, temperature=1.0))

    async def story() -> tuple[list[Answer], list[float]]:
        done, answers, holds = asyncio.Event(), [], []
        users = [asyncio.create_task(user(done, answers)) for _ in range(4)]
        for number in range(20):
            report = await publisher.publish(start + 1 + number, versions[number % 2])
            holds.append(1000 * report.hold_s)
            while not any(span[2] == start + 1 + number for answer in answers for span in spans_of(answer)):
                await asyncio.sleep(0.01)
        done.set()
        await asyncio.gather(*users)
        return answers, sorted(holds)

    answers, holds = loop.run(story(), 200.0)
    assert len(answers) > 10 and all(a.finish in (FinishReason.STOP, FinishReason.LENGTH) for a in answers)
    assert len({version for a in answers for _, _, version in spans_of(a)}) >= 20
    record_property("hold_ms_p50", round(holds[9], 1))
    record_property("hold_ms_p95", round(holds[18], 1))


@pytest.mark.nightly
def test_in_the_mode_in_place_answers_go_on_with_what_the_old_weights_computed(folder: Path, tmp_path: Path) -> None:
    """The shorter hold has its price, which the setting's description names; new prompts are exact."""
    with running_sglang(folder, sglang={"pause_mode": "in_place"}) as (loop, engine):
        tensors = other_weights(folder, 1)
        answer = loop.run(publish_under_way(engine, Publisher(engine, tmp_path), 1, tensors))
        (first, second) = spans_of(answer)
        assert (first[2], second[2], second[1]) == (0, 1, 450)
        off = np.abs(answer.logps - greedy_logps(cold_model(folder, tensors), answer))
        assert off[first[1] :].max() > 1e-3
        fresh = loop.run(generate(engine, list(range(70, 100)), max_tokens=20, temperature=1.0))
        np.testing.assert_allclose(fresh.logps, cold_model_logps(cold_model(folder, tensors), fresh), atol=1e-4)


@pytest.mark.nightly
def test_two_tensor_parallel_ranks_take_a_version_and_verify_both_halves(folder: Path, tmp_path: Path) -> None:
    with running_sglang(folder, tp_size=2) as (loop, engine):
        tensors = other_weights(folder, 1)
        loop.run(Publisher(engine, tmp_path).publish(1, tensors), 120.0)
        assert len(engine._weights._good.checksums) == 2  # type: ignore[union-attr]
        answer = loop.run(generate(engine, PROMPT, max_tokens=30, temperature=1.0))
        np.testing.assert_allclose(answer.logps, cold_model_logps(cold_model(folder, tensors), answer), atol=1e-4)
        asked = [ScoreRequest(ids=np.array(PROMPT, dtype=np.int32), start=4)]
        assert len(loop.run(engine.score(asked))[0].logps) == len(PROMPT) - 4
