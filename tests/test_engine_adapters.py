"""Versions that are adapters, on the transformers engine: added beside weights that no publish touches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from clawrl.engine.catch_up import catch_up
from clawrl.engine.errors import WeightsRefused
from clawrl.engine.protocol import ScoreRequest
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import AdapterShape, PolicyVersion, WeightKind
from clawrl.weights.manifest import as_bytes, pack_bucket
from clawrl.weights.sources import OnDisk
from tests.adapter_kit import SHAPE, Base, Tensors, library_in, random_adapters
from tests.engine_tools import TINY, Drain, cold_model_logps, generate, never_ending, publish, request, running_engine

PROMPT = list(range(10, 40))


@asynccontextmanager
async def serving(folder: Path, shape: AdapterShape | None = SHAPE) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(folder, TINY, adapters=shape)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def publish_adapters(engine: TransformersEngine, base: Base, version: int, adapters: Tensors) -> None:
    manifest, snapshot = base.version_of(version, adapters)
    await engine.prepare(manifest, snapshot)
    for bucket in range(len(manifest.buckets)):
        await engine.receive_bucket(bucket, pack_bucket(manifest, bucket, adapters))
    await engine.commit(version)


def bits(engine: TransformersEngine) -> dict[str, bytes]:
    return {name: as_bytes(p).numpy().tobytes() for name, p in engine._weights._weights.items()}


def test_adapters_are_served_as_the_merged_model_says_also_in_the_middle_of_an_answer(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async def run() -> None:
        base = Base(tiny_folder, tmp_path)
        first, second = random_adapters(base.tensors, 1), random_adapters(base.tensors, 2)
        async with serving(tiny_folder) as engine:
            assert engine.capabilities.weight_kinds == set(WeightKind)
            never_ending(engine)
            asked = request(PROMPT, max_tokens=300, temperature=0.7)
            drain = Drain(engine, asked)
            for version, adapters in ((1, first), (2, second)):
                await drain.more(3)
                await publish_adapters(engine, base, version, adapters)
            answer = await drain.answer()
            assert sorted(set(answer.versions.tolist())) == [0, 1, 2]
            for version, model in enumerate((base.merged({}), base.merged(first), base.merged(second))):
                span = answer.versions == version
                np.testing.assert_allclose(answer.logps[span], cold_model_logps(model, answer, 0.7)[span], atol=1e-4)
            assert np.abs(answer.logps - cold_model_logps(base.merged({}), answer, 0.7)).max() > 0.1
            scored = (await engine.score([ScoreRequest(ids=answer.prompt, start=4)]))[0]
            with torch.no_grad():
                logits = base.merged(second)(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
            cold = logits[3:-1].gather(-1, torch.tensor(PROMPT[4:])[:, None])[:, 0].numpy()
            np.testing.assert_allclose(scored.logps, cold, atol=1e-4)

    asyncio.run(run())


def test_after_200_publishes_of_adapters_no_bit_of_the_base_has_moved(tiny_folder: Path, tmp_path: Path) -> None:
    async def run() -> None:
        base = Base(tiny_folder, tmp_path)
        several = [random_adapters(base.tensors, seed) for seed in range(4)]
        async with serving(tiny_folder) as engine:
            before = bits(engine)
            for version in range(1, 201):
                await publish_adapters(engine, base, version, several[version % 4])
            assert bits(engine) == before
            assert engine._weights.base_digest() == base.manifest.digest
            answer = await generate(engine, PROMPT, max_tokens=20)
            np.testing.assert_allclose(answer.logps, cold_model_logps(base.merged(several[0]), answer), atol=1e-4)

    asyncio.run(run())


def test_adapters_that_were_spoiled_on_the_way_leave_the_old_version_serving(tiny_folder: Path, tmp_path: Path) -> None:
    async def run() -> None:
        base = Base(tiny_folder, tmp_path)
        good, bad = random_adapters(base.tensors, 1), random_adapters(base.tensors, 2)
        async with serving(tiny_folder) as engine:
            await publish_adapters(engine, base, 1, good)
            manifest, snapshot = base.version_of(2, bad)
            await engine.prepare(manifest, snapshot)
            with pytest.raises(WeightsRefused, match="digest"):
                for bucket in range(len(manifest.buckets)):
                    data = pack_bucket(manifest, bucket, bad)
                    data[0] ^= bucket == 1
                    await engine.receive_bucket(bucket, data)
            with pytest.raises(WeightsRefused):
                await engine.commit(2)
            answer = await generate(engine, PROMPT, max_tokens=20)
            assert engine.version == 1 and set(answer.versions.tolist()) == {1}
            np.testing.assert_allclose(answer.logps, cold_model_logps(base.merged(good), answer), atol=1e-4)
            await publish_adapters(engine, base, 3, bad)
            answer = await generate(engine, PROMPT, max_tokens=20)
            np.testing.assert_allclose(answer.logps, cold_model_logps(base.merged(bad), answer), atol=1e-4)

    asyncio.run(run())


def test_an_addition_to_another_base_brings_it_along_or_is_refused_by_the_name_of_what_is_missing(
    tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path
) -> None:
    async def run() -> None:
        other = Base(other_tiny_folder, tmp_path, version=5)
        adapters = random_adapters(other.tensors, 1)
        manifest, snapshot = other.version_of(6, adapters)
        async with serving(tiny_folder) as engine:
            hidden = other.snapshot.rename(tmp_path / "hidden")
            missing = f"another base: version 6 is an addition to version 5 with digest {other.manifest.digest[:12]}"
            with pytest.raises(WeightsRefused, match=missing):
                await engine.prepare(manifest, snapshot)
            with pytest.raises(WeightsRefused):
                await engine.receive(OnDisk(folder=str(snapshot)))
            hidden.rename(other.snapshot)
            version = PolicyVersion(version=9, step=1, snapshot=str(snapshot), digest="", published_at=0.0)
            await catch_up(engine, version, library_in(tmp_path))
            answer = await generate(engine, PROMPT, max_tokens=20)
            assert engine.version == 9
            np.testing.assert_allclose(answer.logps, cold_model_logps(other.merged(adapters), answer), atol=1e-4)
            assert engine._weights.base_digest() == other.manifest.digest
            # It holds that base now, and needs it on no disk.
            other.snapshot.rename(tmp_path / "hidden")
            second = random_adapters(other.tensors, 2)
            await publish_adapters(engine, other, 10, second)
            answer = await generate(engine, PROMPT, max_tokens=20)
            np.testing.assert_allclose(answer.logps, cold_model_logps(other.merged(second), answer), atol=1e-4)

    asyncio.run(run())


def test_whole_weights_leave_no_adapter_behind(tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path) -> None:
    async def run() -> None:
        base, other = Base(tiny_folder, tmp_path), Base(other_tiny_folder, tmp_path, version=2)
        async with serving(tiny_folder) as engine:
            await publish_adapters(engine, base, 1, random_adapters(base.tensors, 1))
            await publish(engine, 2, other.tensors)
            answer = await generate(engine, PROMPT, max_tokens=20)
            np.testing.assert_allclose(answer.logps, cold_model_logps(other.merged({}), answer), atol=1e-4)
            assert engine._weights.base_digest() == other.manifest.digest

    asyncio.run(run())


def test_adapters_of_another_shape_and_engines_without_adapters_are_named_in_the_refusal(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async def run() -> None:
        base = Base(tiny_folder, tmp_path)
        offer = base.version_of(1, random_adapters(base.tensors, 1))
        async with serving(tiny_folder, AdapterShape(rank=4, alpha=8.0, targets=SHAPE.targets)) as engine:
            with pytest.raises(WeightsRefused, match=r"alpha=12\.0.*started for adapters of .*alpha=8\.0"):
                await engine.prepare(*offer)
        async with running_engine(tiny_folder) as engine:
            assert engine.capabilities.weight_kinds == {WeightKind.FULL}
            with pytest.raises(WeightsRefused, match="started for full weights alone"):
                await engine.prepare(*offer)

    asyncio.run(run())


def test_an_engine_without_adapters_catches_up_with_them_merged_in(tiny_folder: Path, tmp_path: Path) -> None:
    async def run() -> None:
        base = Base(tiny_folder, tmp_path)
        adapters = random_adapters(base.tensors, 1)
        _, snapshot = base.version_of(3, adapters)
        library, room = library_in(tmp_path), tmp_path / "copies" / "replica"
        beside = sorted(path.name for path in snapshot.parent.iterdir() if path.name.startswith("v"))

        def version(number: int) -> PolicyVersion:
            return PolicyVersion(version=number, step=1, snapshot=str(snapshot), digest="", published_at=0.0)

        async with running_engine(tiny_folder) as engine:
            await catch_up(engine, version(3), library)
            answer = await generate(engine, PROMPT, max_tokens=20)
            assert engine.version == 3
            np.testing.assert_allclose(answer.logps, cold_model_logps(base.merged(adapters), answer), atol=1e-4)
            for number in (4, 5, 6):
                await catch_up(engine, version(number), library)
            # What serves and what served before it; engines that load in place may have to go back.
            assert sorted(path.name[:7] for path in room.glob("v*")) == ["v000005", "v000006"]
        found = sorted(path.name for path in snapshot.parent.iterdir() if path.name.startswith("v"))
        assert found == beside, "the snapshots' folder is the trainer's"
        await library.close()
        assert not room.exists()

    asyncio.run(run())
