"""Adapters on a fake SGLang: what it is asked for, and when; and answers that move from version to version."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from clawrl.engine.config import EngineConfig, SglangConfig
from clawrl.engine.errors import WeightsRefused
from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.engine.sglang_adapters import SglangAdapters
from clawrl.engine.sglang_api import Refusal, SglangError
from clawrl.engine.sglang_moving import moving
from clawrl.engine.sglang_server import launch_arguments
from clawrl.engine.sglang_weights import SglangWeights
from clawrl.messages import FinishReason
from clawrl.weights.manifest import as_bytes
from clawrl.weights.sources import OnDisk
from tests.adapter_kit import SHAPE, Base, random_adapters
from tests.engine_tools import request
from tests.sglang_fake import CONTINUE, DISK, PAUSE, FakeSglang, hashes, weights

LOAD, UNLOAD = "load_lora_adapter_from_tensors", "unload_lora_adapter"


class FakeWithAdapters(FakeSglang):
    """``adapters`` are those that it holds, by name."""

    adapters: dict[str, Mapping[str, torch.Tensor]]

    def _do(self, call: str, body: Mapping[str, Any]) -> Any:
        if call == LOAD:
            assert body["config_dict"] == {
                "peft_type": "LORA",
                "r": 4,
                "lora_alpha": 12.0,
                "target_modules": list(SHAPE.targets),
            }
            (payload,) = body["serialized_named_tensors"]
            tensors = pickle.loads(base64.b64decode(payload))
            for name, wanted in body["expected_checksums"].items():
                assert hashlib.sha256(as_bytes(tensors[name]).numpy().data).hexdigest() == wanted
            assert tensors.keys() == body["expected_checksums"].keys()
            self.adapters[body["lora_name"]] = tensors
        elif call == UNLOAD:
            if self.adapters.pop(body["lora_name"], None) is None:
                raise Refusal("no such adapter")
        else:
            return super()._do(call, body)
        return {"success": True}


@dataclass
class Stage:
    api: FakeWithAdapters
    adapters: SglangAdapters
    base: Base

    async def load(self, version: int, seed: int, base: Base | None = None) -> dict[str, torch.Tensor]:
        base = base or self.base
        tensors = random_adapters(base.tensors, seed)
        manifest, snapshot = base.version_of(version, tensors)
        await self.adapters.prepare(manifest, snapshot)
        await self.adapters.receive(OnDisk(folder=str(snapshot)))
        return tensors

    def serves(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """This version, by these adapters, and no others are kept."""
        serving = self.adapters.serving
        assert serving.version == version and serving.name is not None and list(self.api.adapters) == [serving.name]
        held = self.api.adapters[serving.name]
        assert all(torch.equal(held[name], tensor) for name, tensor in tensors.items())


def played(folder: Path, root: Path, story: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        api = FakeWithAdapters(folder, {})
        api.adapters = {}
        made = SglangWeights(
            api,  # type: ignore[arg-type]
            folder,
            SglangConfig(),
            dtype=torch.float32,
            sessions=True,
            decide_within_s=60.0,
            running=lambda: 2,
        )
        await made.start()
        api.calls.clear()
        adapters = SglangAdapters(
            api,  # type: ignore[arg-type]
            made,
            folder,
            SHAPE,
            dtype=torch.float32,
            ranks=1,
            running=lambda: 2,
        )
        try:
            await story(Stage(api, adapters, Base(folder, root)))
        finally:
            await made.stop()

    asyncio.run(run())


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_version_is_loaded_beside_what_serves_and_nobody_is_held(tiny_folder: Path, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.load(1, 1)
        assert stage.adapters.serving.version == 0 and stage.adapters.serving.name is None
        report = await stage.adapters.commit(1)
        assert (report.version, report.requests_carried) == (1, 2)
        stage.serves(1, first)
        second = await stage.load(2, 2)
        assert len(stage.api.adapters) == 2 and stage.adapters.serving.version == 1
        await stage.adapters.commit(2)
        await settled()
        stage.serves(2, second)
        assert set(stage.api.names) == {LOAD, UNLOAD}

    played(tiny_folder, tmp_path, story)


def test_adapters_that_somebody_uses_stay_until_they_are_done(tiny_folder: Path, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.load(1, 1)
        await stage.adapters.commit(1)
        with stage.adapters.using() as serving:
            second = await stage.load(2, 2)
            await stage.adapters.commit(2)
            await settled()
            assert serving.moved.is_set() and serving.name in stage.api.adapters
        await settled()
        stage.serves(2, second)

    played(tiny_folder, tmp_path, story)


def test_a_load_that_fails_and_a_version_that_is_called_off_leave_the_old_one(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.load(1, 1)
        await stage.adapters.commit(1)
        stage.api.fail[LOAD] = 1
        with pytest.raises(WeightsRefused, match="version 2: SGLang took no adapters: broke"):
            await stage.load(2, 2)
        with pytest.raises(WeightsRefused, match="not loaded"):
            await stage.adapters.commit(2)
        stage.serves(1, first)
        await stage.load(3, 3)
        await stage.adapters.abort()
        await settled()
        with pytest.raises(WeightsRefused):
            await stage.adapters.commit(3)
        stage.serves(1, first)
        assert not stage.adapters.serving.moved.is_set()
        third = await stage.load(4, 3)
        await stage.adapters.commit(4)
        await settled()
        stage.serves(4, third)

    played(tiny_folder, tmp_path, story)


def test_bytes_that_are_not_those_of_the_manifest_never_reach_sglang(tiny_folder: Path, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        manifest, snapshot = stage.base.version_of(1, random_adapters(stage.base.tensors, 1))
        other = random_adapters(stage.base.tensors, 2)
        await stage.adapters.prepare(manifest, snapshot)
        wrong = stage.base.version_of(1, other)[1]
        with pytest.raises(WeightsRefused, match="digest"):
            await stage.adapters.receive(OnDisk(folder=str(wrong)))
        assert stage.api.names == []

    played(tiny_folder, tmp_path, story)


def test_another_base_is_loaded_in_place_after_the_adapters_and_requests_move_before_they_go_on(
    tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        await stage.load(1, 1)
        await stage.adapters.commit(1)
        other, old = Base(other_tiny_folder, tmp_path, version=5), stage.adapters.serving
        stage.api.calls.clear()
        tensors = await stage.load(6, 2, other)
        order = [name for name in stage.api.names if name in (LOAD, PAUSE, DISK, CONTINUE)]
        assert order == [LOAD, PAUSE, DISK] and stage.api.paused and not old.moved.is_set()
        moved: list[bool] = []
        original = stage.api._do
        stage.api._do = lambda call, body: (  # type: ignore[method-assign]
            moved.append(old.moved.is_set()) if call == CONTINUE else None,
            original(call, body),
        )[1]
        await stage.adapters.commit(6)
        await settled()
        assert moved == [True] and stage.api.weights == hashes(weights(other_tiny_folder))
        stage.serves(6, tensors)
        # That base is held now.
        stage.api.calls.clear()
        await stage.load(7, 3, other)
        assert stage.api.names == [LOAD]

    played(tiny_folder, tmp_path, story)


def test_a_base_that_cannot_be_loaded_leaves_the_old_base_and_the_old_adapters(
    tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.load(1, 1)
        await stage.adapters.commit(1)
        other = Base(other_tiny_folder, tmp_path, version=5)
        stage.api.fail[DISK] = 1
        with pytest.raises(WeightsRefused, match="broke"):
            await stage.load(6, 2, other)
        await stage.adapters.abort()
        await settled()
        assert not stage.api.paused and stage.api.weights == hashes(weights(tiny_folder))
        stage.serves(1, first)
        other.snapshot.rename(tmp_path / "hidden")
        with pytest.raises(WeightsRefused, match=r"an addition to version 5 .* not what SGLang holds"):
            await stage.load(7, 2, other)

    played(tiny_folder, tmp_path, story)


def test_whole_weights_leave_no_adapters(tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.load(1, 1)
        await stage.adapters.commit(1)
        other = Base(other_tiny_folder, tmp_path, version=2)
        await stage.adapters.prepare(other.manifest, other.snapshot)
        await stage.adapters.receive(OnDisk(folder=str(other.snapshot)))
        await stage.adapters.commit(2)
        await settled()
        assert (stage.adapters.serving.name, stage.adapters.serving.version) == (None, 2)
        assert stage.api.adapters == {} and stage.api.weights == hashes(weights(other_tiny_folder))
        await stage.load(3, 1)
        assert DISK in stage.api.names, "back on the first base"

    played(tiny_folder, tmp_path, story)


def test_sglang_is_started_for_the_shape_of_the_adapters(tmp_path: Path) -> None:
    flags = launch_arguments(tmp_path, EngineConfig(kind="sglang", device="cpu"), 1, "k", SHAPE)
    at = flags.index("--lora-target-modules")
    assert tuple(flags[at + 1 : at + 8]) == SHAPE.targets and flags[at + 8].startswith("--")
    assert flags[flags.index("--max-lora-rank") + 1] == "4" and "--enable-lora" in flags
    assert flags[flags.index("--lora-backend") + 1] == "torch_native"
    assert "--lora-backend" not in launch_arguments(tmp_path, EngineConfig(kind="sglang"), 1, "k", SHAPE)
    assert not any("lora" in flag for flag in launch_arguments(tmp_path, EngineConfig(kind="sglang"), 1, "k"))


# -- answers that move --------------------------------------------------------------------------------------------


class Source:
    """Says the ids of ``text`` from where a request begins, in twos, with the hundreds of its log-probs by version."""

    def __init__(self, prompt: int, text: list[int]) -> None:
        self.prompt, self.text = prompt, text
        self.asked: list[GenerateRequest] = []
        self.names: list[str | None] = []
        self.closed = 0
        self.pause_at = -1
        self.paused = asyncio.Event()

    async def submit(self, asked: GenerateRequest, name: str | None) -> AsyncGenerator[TokenChunk, None]:
        self.asked.append(asked)
        self.names.append(name)
        said = len(asked.prompt_ids) - self.prompt
        end = min(len(self.text), said + asked.sampling.max_tokens)
        try:
            for at in range(said, end, 2):
                if at == self.pause_at:
                    self.pause_at = -1
                    self.paused.set()
                    await asyncio.sleep(60)
                ids = self.text[at : min(at + 2, end)]
                last = FinishReason.LENGTH if at + 2 >= end else None
                yield TokenChunk(
                    ids=np.array(ids, dtype=np.int32),
                    logps=np.full(len(ids), -float(len(self.asked)), dtype=np.float32),
                    version=99,
                    finish_reason=last,
                )
        finally:
            self.closed += 1


def moved(
    folder: Path, root: Path, text: list[int], *, move_at: int = -1, **sampling: Any
) -> tuple[Source, list[TokenChunk]]:
    """An answer of ``text`` during which version 2 takes the place of version 1, after ``move_at`` tokens."""
    found: list[tuple[Source, list[TokenChunk]]] = []

    async def story(stage: Stage) -> None:
        await stage.load(1, 1)
        await stage.adapters.commit(1)
        source = Source(3, text)
        source.pause_at = move_at
        tokenizer = AutoTokenizer.from_pretrained(folder)

        async def answer() -> list[TokenChunk]:
            asked = request([7, 8, 9], **sampling)
            return [chunk async for chunk in moving(asked, stage.adapters, source.submit, tokenizer, [2])]

        answering = asyncio.create_task(answer())
        if move_at >= 0:
            await source.paused.wait()
            await stage.load(2, 2)
            await stage.adapters.commit(2)
            if sampling.get("json_schema"):
                await settled()
                answering.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await answering
        found.append((source, [] if answering.cancelled() else await answering))
        await settled()
        assert list(stage.api.adapters) == [stage.adapters.serving.name]

    played(folder, root, story)
    return found[0]


def test_an_answer_is_asked_for_anew_as_prompt_and_what_was_said(tiny_folder: Path, tmp_path: Path) -> None:
    text = list(range(100, 110))
    source, chunks = moved(tiny_folder, tmp_path, text, move_at=4, max_tokens=10)
    assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == text
    assert [(chunk.version, chunk.logps[0]) for chunk in chunks] == [(1, -1.0)] * 2 + [(2, -2.0)] * 3
    assert [asked.prompt_ids.tolist() for asked in source.asked] == [[7, 8, 9], [7, 8, 9, *text[:4]]]
    assert [asked.sampling.max_tokens for asked in source.asked] == [10, 6]
    assert source.names[0] != source.names[1] and source.closed == 2
    assert [chunk.finish_reason for chunk in chunks] == [None] * 4 + [FinishReason.LENGTH]


def test_a_stop_string_is_found_where_it_reaches_over_a_cut(tiny_folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    text = [token for letter in "abcxyzdef" for token in tokenizer.encode(letter)]
    assert len(text) == 9
    source, chunks = moved(tiny_folder, tmp_path, text, move_at=4, max_tokens=9, stop=("xyz",))
    assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == text[:6]
    assert chunks[-1].finish_reason is FinishReason.STOP and all(asked.sampling.stop == () for asked in source.asked)


def test_an_answer_by_a_grammar_is_not_cut(tiny_folder: Path, tmp_path: Path) -> None:
    source, _ = moved(tiny_folder, tmp_path, list(range(100, 110)), move_at=4, max_tokens=10, json_schema="{}")
    assert len(source.asked) == 1 and source.closed == 1


def test_an_answer_whose_last_token_came_without_a_word_is_ended(tiny_folder: Path, tmp_path: Path) -> None:
    text = [100, 101, 5, 2]
    source, chunks = moved(tiny_folder, tmp_path, [*text, 1, 1], move_at=4, max_tokens=9)
    assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == text
    assert chunks[-1].finish_reason is FinishReason.STOP and len(source.asked) == 1


def test_a_failure_of_a_submission_is_the_answers(tiny_folder: Path, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        async def broken(asked: GenerateRequest, name: str | None) -> AsyncGenerator[TokenChunk, None]:
            raise SglangError("gone")
            yield

        with pytest.raises(SglangError, match="gone"):
            async for _ in moving(request([1]), stage.adapters, broken, AutoTokenizer.from_pretrained(tiny_folder), []):
                pass
        assert stage.adapters.serving.users == 0

    played(tiny_folder, tmp_path, story)
