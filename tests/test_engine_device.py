"""Where the engine keeps its model. A meta device stands in for a GPU: it has shapes and no values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.generation.continuous_batching import continuous_api

from clawrl.engine.errors import EngineError
from clawrl.engine.staging import Staging
from clawrl.engine.transformers import TransformersEngine, choose_device
from clawrl.weights.manifest import build_manifest, pack_bucket, spec_of
from tests.engine_tools import TINY, publish, running_engine, weights_of

META = torch.device("meta")


@pytest.mark.parametrize(
    ("asked", "sees_a_gpu", "expected"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_the_device_is_the_one_asked_for_or_the_gpu_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, asked: str, sees_a_gpu: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees_a_gpu)
    assert choose_device(asked) == torch.device(expected)


def test_an_engine_that_must_have_a_gpu_does_not_start_without_one(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    engine = TransformersEngine(tiny_folder, TINY.model_copy(update={"device": "cuda"}))
    with pytest.raises(EngineError, match="num_gpus"):
        asyncio.run(engine.start())


def test_the_model_and_each_version_are_on_the_engines_device(
    monkeypatch: pytest.MonkeyPatch, build_model: Callable[..., Path]
) -> None:
    # Untied: a move to the meta device, unlike one to a GPU, makes two of a shared tensor.
    old, new = build_model(tie_embeddings=False), build_model(tie_embeddings=False, seed=1)
    monkeypatch.setattr("clawrl.engine.transformers.choose_device", lambda asked: META)

    async def run() -> None:
        engine = TransformersEngine(old, TINY, generates=False)
        await engine.start()
        assert _devices(engine) == {META}
        await publish(engine, 1, weights_of(new))
        assert engine.version == 1 and _devices(engine) == {META}
        await engine.stop()

    asyncio.run(run())


def _devices(engine: TransformersEngine) -> set[torch.device]:
    return {tensor.device for tensor in [*engine.model.parameters(), *engine.model.buffers()]}


def test_a_version_is_moved_when_it_is_verified_so_that_a_commit_copies_nothing() -> None:
    tensors = {"a": torch.arange(5.0), "b": torch.ones(2, 2)}
    manifest = build_manifest(1, tensors, bucket_bytes=20)
    staging = Staging({name: spec_of(name, tensor) for name, tensor in tensors.items()}, META)
    staging.begin(manifest)
    staging.receive(0, pack_bucket(manifest, 0, tensors))
    assert {tensor.device.type for tensor in staging._tensors.values()} == {"cpu"}, "the digest is over its bytes"
    staging.receive(1, pack_bucket(manifest, 1, tensors))
    assert {tensor.device for tensor in staging._tensors.values()} == {META}
    assert {name: tensor.shape for name, tensor in staging.take(1).items()} == {"a": (5,), "b": (2, 2)}


def test_flash_attention_is_not_switched_on_unasked(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    """With it come captured graphs, which would go on reading the weights that a swap replaced."""
    monkeypatch.setattr(continuous_api, "is_flash_attn_3_available", lambda **_: True)
    monkeypatch.setattr(continuous_api, "is_flash_attn_2_available", lambda **_: True)

    async def run() -> None:
        async with running_engine(tiny_folder) as engine:
            assert engine.model.config._attn_implementation == "sdpa"

    asyncio.run(run())
