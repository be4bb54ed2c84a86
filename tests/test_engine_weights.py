"""A new version becomes visible all at once, mid-stream, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from clawrl.engine.errors import WeightsRefused
from clawrl.weights.manifest import build_manifest, pack_bucket
from tests.engine_tools import (
    NOWHERE,
    Drain,
    cold_logps,
    generate,
    never_ending,
    publish,
    request,
    running_engine,
    weights_of,
)

PROMPT = list(range(10, 40))


def test_each_span_of_a_straddling_answer_has_the_logps_of_a_cold_engine(
    tiny_folder: Path, other_tiny_folder: Path
) -> None:
    async def run() -> None:
        folders = {0: tiny_folder, 1: other_tiny_folder, 2: tiny_folder, 3: other_tiny_folder}
        async with running_engine(tiny_folder) as engine:
            never_ending(engine)
            streams = [request(PROMPT, max_tokens=400, temperature=t) for t in (1.0, 0.7)]
            weights = {version: weights_of(folder) for version, folder in folders.items()}
            drains = [Drain(engine, stream) for stream in streams]
            for version in (1, 2, 3):
                for drain in drains:
                    await drain.more(20)
                await publish(engine, version, weights[version])
            for drain, stream in zip(drains, streams, strict=True):
                answer = await drain.answer()
                assert len(answer.ids) == 400
                assert sorted(set(answer.versions.tolist())) == [0, 1, 2, 3]
                assert (np.diff(answer.versions) >= 0).all()
                for version, folder in folders.items():
                    span = answer.versions == version
                    cold = cold_logps(folder, answer, stream.sampling.temperature)
                    np.testing.assert_allclose(answer.logps[span], cold[span], atol=1e-4)
                stale = cold_logps(tiny_folder, answer, stream.sampling.temperature)
                assert np.abs(answer.logps - stale)[answer.versions == 1].max() > 0.1

    asyncio.run(run())


def test_the_next_answer_after_a_commit_is_the_new_versions(tiny_folder: Path, other_tiny_folder: Path) -> None:
    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            await generate(engine, PROMPT, max_tokens=30)
            await publish(engine, 7, weights_of(other_tiny_folder))
            answer = await generate(engine, PROMPT, max_tokens=30)
            assert set(answer.versions.tolist()) == {7} and engine.version == 7
            np.testing.assert_allclose(answer.logps, cold_logps(other_tiny_folder, answer), atol=1e-4)

    asyncio.run(run())


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads_follow_the_published_weights(tmp_path: Path, build_model, tied: bool) -> None:  # type: ignore[no-untyped-def]
    old, new = build_model(tie_embeddings=tied), build_model(tie_embeddings=tied, seed=3)

    async def run() -> None:
        async with running_engine(old) as engine:
            await publish(engine, 1, weights_of(new))
            head, embedding = engine.model.get_output_embeddings(), engine.model.get_input_embeddings()
            assert (head.weight.data_ptr() == embedding.weight.data_ptr()) is tied
            answer = await generate(engine, PROMPT, max_tokens=20)
            np.testing.assert_allclose(answer.logps, cold_logps(new, answer), atol=1e-4)

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["missing bucket", "corrupt byte", "short bucket", "twice", "no prepare"])
def test_a_failed_publish_leaves_the_old_version_serving_and_the_next_one_works(
    tiny_folder: Path, other_tiny_folder: Path, fault: str
) -> None:
    async def run() -> None:
        tensors = weights_of(other_tiny_folder)
        manifest = build_manifest(1, tensors, bucket_bytes=20_000)
        assert len(manifest.buckets) > 3
        async with running_engine(tiny_folder) as engine:
            with pytest.raises(WeightsRefused):
                if fault != "no prepare":
                    await engine.prepare(manifest, NOWHERE)
                for bucket in range(len(manifest.buckets)):
                    data = pack_bucket(manifest, bucket, tensors)
                    if fault == "missing bucket" and bucket == 1:
                        continue
                    if fault == "corrupt byte" and bucket == 2:
                        data = data.clone()
                        data[5] ^= 1
                    if fault == "short bucket" and bucket == 1:
                        data = data[:-1]
                    await engine.receive_bucket(bucket, data)
                    if fault == "twice":
                        await engine.receive_bucket(bucket, data)
                await engine.commit(1)
            assert engine.version == 0
            answer = await generate(engine, PROMPT, max_tokens=10)
            np.testing.assert_allclose(answer.logps, cold_logps(tiny_folder, answer), atol=1e-4)
            await publish(engine, 2, tensors)
            answer = await generate(engine, PROMPT, max_tokens=10)
            np.testing.assert_allclose(answer.logps, cold_logps(other_tiny_folder, answer), atol=1e-4)

    asyncio.run(run())


def test_a_manifest_that_does_not_fit_the_model_is_refused_by_name(tiny_folder: Path) -> None:
    async def run() -> None:
        tensors = dict(weights_of(tiny_folder))
        name, tensor = next(iter(tensors.items()))
        async with running_engine(tiny_folder) as engine:
            for wrong in (
                {**tensors, name: tensor[:-1]},
                {**tensors, name: tensor.to(torch.bfloat16)},
                {key: value for key, value in tensors.items() if key != name},
                {**tensors, "extra": tensor},
            ):
                with pytest.raises(WeightsRefused, match=r"extra|embed_tokens"):
                    await engine.prepare(build_manifest(1, wrong, bucket_bytes=10_000), NOWHERE)

    asyncio.run(run())


def test_an_aborted_publish_is_forgotten(tiny_folder: Path, other_tiny_folder: Path) -> None:
    async def run() -> None:
        tensors = weights_of(other_tiny_folder)
        manifest = build_manifest(1, tensors, bucket_bytes=1_000_000)
        async with running_engine(tiny_folder) as engine:
            await engine.prepare(manifest, NOWHERE)
            await engine.receive_bucket(0, pack_bucket(manifest, 0, tensors))
            await engine.abort()
            with pytest.raises(WeightsRefused):
                await engine.commit(1)
            assert engine.version == 0

    asyncio.run(run())
