"""Adapters as versions under a real SGLang: loaded beside what serves, exact from their first token on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from clawrl.engine.catch_up import catch_up
from clawrl.engine.errors import WeightsRefused
from clawrl.engine.protocol import ScoreRequest
from clawrl.engine.sglang import SglangEngine
from clawrl.engine.sglang_api import SglangError
from clawrl.messages import FinishReason, PolicyVersion
from tests.adapter_kit import SHAPE, Base, library_in, random_adapters
from tests.engine_tools import Answer, cold_model_logps, generate, request
from tests.sglang_kit import Loop, Publisher, needs_sglang, other_weights, running_sglang

pytestmark = [pytest.mark.nightly, needs_sglang]
PROMPT = list(range(20, 60))
LONG = 300


class Stage:
    """One SGLang for all of these tests, its starting weights as a base, and a publisher of adapters on it."""

    def __init__(self, loop: Loop, engine: SglangEngine, folder: Path, root: Path) -> None:
        self.loop, self.engine, self.root, self.folder = loop, engine, root, folder
        self.base = Base(folder, root)
        self.publisher = Publisher(engine, root, bucket_bytes=6_000, addition=self.base.addition())
        self._latest = 0

    def next(self) -> int:
        self._latest += 1
        return self._latest

    def publish(self, seed: int) -> int:
        version = self.next()
        self.loop.run(self.publisher.publish(version, random_adapters(self.base.tensors, seed)))
        return version

    def agrees(self, answer: Answer, seed: int, span: slice = slice(None), temperature: float = 1.0) -> None:
        model = self.base.merged(random_adapters(self.base.tensors, seed))
        cold = cold_model_logps(model, answer, temperature)
        np.testing.assert_allclose(answer.logps[span], cold[span], atol=1e-4)

    def checksums(self) -> object:
        assert self.engine._weights is not None
        return self.loop.run(self.engine._weights._checksums())


@pytest.fixture(scope="module")
def stage(tiny_qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_sglang(tiny_qwen3_folder, adapters=SHAPE, max_running_requests=8) as (loop, engine):
        yield Stage(loop, engine, tiny_qwen3_folder, tmp_path_factory.mktemp("adapters"))


async def long_answer(engine: SglangEngine, **sampling: object) -> Answer:
    """Greedy, so that no end token comes by chance."""
    return await generate(engine, PROMPT, **{"max_tokens": LONG, "temperature": 0.0, **sampling})  # type: ignore[arg-type]


async def moved_answer(stage: Stage, version: int, seed: int, **sampling: object) -> Answer:
    answering = asyncio.create_task(long_answer(stage.engine, **sampling))
    await asyncio.sleep(0.6)
    assert not answering.done()
    await stage.publisher.publish(version, random_adapters(stage.base.tensors, seed))
    return await answering


def test_an_answer_goes_on_under_new_adapters_and_cold_engines_agree_with_both_parts(stage: Stage) -> None:
    first, second = stage.publish(1), stage.next()
    answer = stage.loop.run(moved_answer(stage, second, 2))
    assert sorted(set(answer.versions.tolist())) == [first, second] and len(answer.ids) == LONG
    cut = int((answer.versions == first).sum())
    assert 0 < cut < LONG and (np.diff(answer.versions) >= 0).all()
    stage.agrees(answer, 1, slice(cut))
    stage.agrees(answer, 2, slice(cut, None))
    assert answer.finish is FinishReason.LENGTH and stage.engine.version == second


def test_a_prefix_that_was_cached_under_older_adapters_is_not_used(stage: Stage) -> None:
    for seed in (3, 4, 3):
        version = stage.publish(seed)
        for temperature in (1.0, 0.7):
            answer = stage.loop.run(generate(stage.engine, PROMPT, max_tokens=20, temperature=temperature))
            assert set(answer.versions.tolist()) == {version}
            stage.agrees(answer, seed, temperature=temperature)


def test_scores_and_samples_are_by_the_adapters_that_serve(stage: Stage) -> None:
    version = stage.publish(5)
    (scores,) = stage.loop.run(stage.engine.score([ScoreRequest(ids=np.array(PROMPT, dtype=np.int32), start=4)]))
    with torch.no_grad():
        model = stage.base.merged(random_adapters(stage.base.tensors, 5))
        logits = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    cold = logits[3:-1].gather(-1, torch.tensor(PROMPT[4:])[:, None])[:, 0].numpy()
    assert scores.version == version
    np.testing.assert_allclose(scores.logps, cold, atol=1e-4)
    asked = request(PROMPT, max_tokens=1, temperature=0.01)
    (ids,) = stage.loop.run(stage.engine.sample(asked, 1))
    assert not isinstance(ids, Exception) and int(ids[0]) == int(logits[-1].argmax())


def test_many_publishes_under_load_fail_nobody_leave_no_adapters_behind_and_do_not_move_the_base(stage: Stage) -> None:
    before, start = stage.checksums(), stage.next()

    async def user(done: asyncio.Event, answers: list[Answer]) -> None:
        while not done.is_set():
            answers.append(await generate(stage.engine, PROMPT, max_tokens=24, temperature=1.0))

    async def story() -> list[Answer]:
        done, answers = asyncio.Event(), list[Answer]()
        users = [asyncio.create_task(user(done, answers)) for _ in range(4)]
        for number in range(20):
            adapters = random_adapters(stage.base.tensors, 6 + number % 2)
            await stage.publisher.publish(start + number, adapters)
            await asyncio.sleep(0.1)
        done.set()
        await asyncio.gather(*users)
        return answers

    answers = stage.loop.run(story(), 300.0)
    stage._latest = start + 20
    assert len(answers) > 10 and all(answer.finish is not None for answer in answers)
    for answer in answers[-8:]:
        for version in sorted(set(answer.versions.tolist())):
            spans = np.flatnonzero(answer.versions == version)
            if version >= start:
                stage.agrees(answer, 6 + (version - start) % 2, slice(spans[0], spans[-1] + 1))
    assert stage.checksums() == before

    # Names only: what it answers to a name that it has is a refusal.
    assert len(stage.loop.run(loaded(stage.engine))) == 1


async def loaded(engine: SglangEngine) -> set[str]:
    """The adapters in SGLang, once it has unloaded what it was told to: loading one that is not there names them."""
    for _ in range(50):
        try:
            reply = await engine._api.control("load_lora_adapter", {"lora_name": "none", "lora_path": "/nowhere"})
        except SglangError as error:
            reply = error.args
        names = set(re.findall(r"v\d+-[0-9a-f]{12}-\d+", str(reply)))
        if len(names) == 1:
            break
        await asyncio.sleep(0.2)
    return names


def test_adapters_that_were_spoiled_or_broke_off_leave_the_old_ones_serving(stage: Stage) -> None:
    version = stage.publish(8)
    worse = random_adapters(stage.base.tensors, 9)

    async def story() -> Answer:
        answering = asyncio.create_task(long_answer(stage.engine))
        await asyncio.sleep(0.3)
        with pytest.raises(WeightsRefused, match="digest"):
            await stage.publisher.by_broadcast(stage.next(), worse, flipped=True)
        return await answering

    answer = stage.loop.run(story())
    assert set(answer.versions.tolist()) == {version} and stage.engine.version == version
    stage.agrees(answer, 8)
    stage.engine.health()


def test_an_answer_by_a_grammar_ends_under_the_adapters_it_began_with(stage: Stage) -> None:
    version = stage.publish(10)
    schema = json.dumps({"type": "array", "items": {"type": "string", "pattern": "^[a-z]{40}$"}, "minItems": 9})
    answer = stage.loop.run(moved_answer(stage, stage.next(), 11, json_schema=schema, max_tokens=200))
    assert set(answer.versions.tolist()) == {version}
    assert stage.engine.version == version + 1
    answer = stage.loop.run(generate(stage.engine, PROMPT, max_tokens=20))
    stage.agrees(answer, 11)


def test_adapters_on_another_base_bring_it_along_and_whole_weights_leave_no_adapters(
    stage: Stage, tmp_path: Path
) -> None:
    stage.publish(12)
    whole = other_weights(stage.folder, 1)

    async def in_the_middle() -> Answer:
        answering = asyncio.create_task(long_answer(stage.engine))
        await asyncio.sleep(0.4)
        await Publisher(stage.engine, tmp_path).publish(stage.next(), whole)
        return await answering

    answer = stage.loop.run(in_the_middle())
    old, new = sorted(set(answer.versions.tolist()))
    cut = int((answer.versions == old).sum())
    stage.agrees(answer, 12, slice(cut))
    bare = Base(stage.folder, tmp_path)
    bare.tensors = whole
    np.testing.assert_allclose(answer.logps[cut:], cold_model_logps(bare.merged({}), answer, 1.0)[cut:], atol=1e-4)
    # Back to adapters on the first base, as a replica does that comes late.
    _, snapshot = stage.base.version_of(stage.next(), random_adapters(stage.base.tensors, 13))
    version = PolicyVersion(version=stage._latest, step=1, snapshot=str(snapshot), digest="", published_at=0.0)
    stage.loop.run(catch_up(stage.engine, version, library_in(tmp_path)))
    answer = stage.loop.run(generate(stage.engine, PROMPT, max_tokens=20))
    assert stage.engine.version == version.version > new
    stage.agrees(answer, 13)
