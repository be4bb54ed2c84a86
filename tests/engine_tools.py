"""What the engine tests share: a running tiny engine, one-line generation, a cold reference."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from clawrl.engine.config import EngineConfig
from clawrl.engine.protocol import Engine, GenerateRequest, TokenChunk
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import FinishReason, SamplingParams
from clawrl.weights.manifest import build_manifest, pack_bucket

_names = itertools.count()
NOWHERE = Path("/nowhere")  # a snapshot that this engine does not need
TINY = EngineConfig(
    dtype="float32",
    context_length=512,
    max_running_requests=4,
    kv_blocks=64,
    page_size=32,
    max_batch_tokens=64,
    threads=1,
)


@asynccontextmanager
async def running_engine(folder: Path, config: EngineConfig = TINY) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(folder, config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def never_ending(engine: TransformersEngine) -> None:
    """No token ends an answer from here on; with random weights an end token comes by chance at any time."""
    assert engine._batcher is not None
    engine._eos_ids.clear()
    engine._batcher._eos_ids.clear()


@dataclass
class Answer:
    prompt: np.ndarray
    ids: np.ndarray
    logps: np.ndarray
    versions: np.ndarray
    finish: FinishReason | None
    chunks: list[TokenChunk]


def request(prompt: list[int] | np.ndarray, **sampling: object) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"test-{next(_names)}",
        prompt_ids=np.asarray(prompt, dtype=np.int32),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
    )


async def generate(engine: TransformersEngine, prompt: list[int] | np.ndarray, **sampling: object) -> Answer:
    asked = request(prompt, **sampling)
    return collect(asked.prompt_ids, [chunk async for chunk in engine.generate(asked)])


def collect(prompt: np.ndarray, chunks: list[TokenChunk]) -> Answer:
    return Answer(
        prompt=prompt,
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        logps=np.concatenate([chunk.logps for chunk in chunks]),
        versions=np.concatenate([np.full(len(chunk.ids), chunk.version) for chunk in chunks]),
        finish=chunks[-1].finish_reason,
        chunks=chunks,
    )


class Drain:
    """An answer that is read while a test does other things, and tells how far it has come.

    A test that acts in the middle of an answer waits for `more` tokens, not for a while: after a while a quick machine
    has ended the answer, and a slow one has not begun it.
    """

    def __init__(self, engine: Engine, asked: GenerateRequest) -> None:
        self._asked = asked
        self._chunks: list[TokenChunk] = []
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._read(engine))

    async def more(self, tokens: int) -> None:
        """Come back when there are so many tokens more than now; AssertionError if the answer ends before."""
        wanted = self._tokens() + tokens
        while self._tokens() < wanted:
            assert not self._task.done(), f"the answer ended with {self._tokens()} tokens, before it had {wanted}"
            self._grew.clear()
            await self._grew.wait()

    async def answer(self) -> Answer:
        await self._task
        return collect(self._asked.prompt_ids, self._chunks)

    def cancel(self) -> None:
        self._task.cancel()

    def _tokens(self) -> int:
        return sum(len(chunk.ids) for chunk in self._chunks)

    async def _read(self, engine: Engine) -> None:
        try:
            async for chunk in engine.generate(self._asked):
                self._chunks.append(chunk)
                self._grew.set()
        finally:
            asyncio.get_running_loop().call_soon(self._grew.set)


def cold_logps(folder: Path, answer: Answer, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of the answer under a freshly loaded model: one plain forward pass, nothing cached."""
    return cold_model_logps(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), answer, temperature
    )


def cold_model_logps(model: torch.nn.Module, answer: Answer, temperature: float = 1.0) -> np.ndarray:
    ids = torch.from_numpy(np.concatenate([answer.prompt, answer.ids]).astype(np.int64))[None]
    with torch.no_grad():
        logps = (model(ids).logits[0].float() / temperature).log_softmax(-1)
    start = len(answer.prompt)
    return logps[start - 1 : -1].gather(-1, ids[0, start:, None])[:, 0].numpy()


def weights_of(folder: Path) -> Mapping[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


async def publish(engine: TransformersEngine, version: int, tensors: Mapping[str, torch.Tensor]) -> float:
    """Run one whole weight transaction and return the hold in seconds."""
    manifest = build_manifest(version, tensors, bucket_bytes=20_000)
    await engine.prepare(manifest, NOWHERE)
    for bucket in range(len(manifest.buckets)):
        await engine.receive_bucket(bucket, pack_bucket(manifest, bucket, tensors))
    return (await engine.commit(version)).hold_s
