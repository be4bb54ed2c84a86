"""What `bench.publish` compares: our publish and the naive one, to an engine that is answering all the while.

The naive way is what one writes first: stop the engine, send every tensor in a call of its own, go on. It stages
nothing, checks nothing and could not go back. To the transformers engine a call is a message through a pipe with the
tensor pickled; to SGLang it is an HTTP request for a broadcast of one tensor. Both make the answers in flight go on
with their prefixes computed anew, as ours does, so that all of them are worth the same.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.publish_trainer import HOST, TIMEOUT_S, Offer, Trainer
from clawrl.engine.config import EngineConfig, SglangConfig
from clawrl.engine.protocol import Engine, GenerateRequest
from clawrl.engine.sglang import SglangEngine
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import SamplingParams, WeightManifest
from clawrl.weights.manifest import as_bytes, byte_size, cut_buckets, digest_of
from clawrl.weights.sources import Broadcast, OnDisk, Rendezvous

# Short, since every publish makes the engine compute the prefixes anew.
PROMPT, ANSWER = 32, 96
_SETTLE_S = 300.0
_SETTINGS: Mapping[str, Any] = {
    "dtype": "float32",
    "context_length": 512,
    "max_running_requests": 4,
    "kv_blocks": 64,
    "page_size": 32,
    "max_batch_tokens": 256,
    "threads": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One publish. ``hold_s`` is what the engine was stopped for, ``silence_s`` the longest wait for a next token."""

    bytes: int
    pieces: int
    prepare_s: float
    receive_s: float
    commit_s: float
    hold_s: float
    silence_s: float = 0.0
    tokens_carried: int = 0

    @property
    def whole_s(self) -> float:
        return self.prepare_s + self.receive_s + self.commit_s


@dataclass(slots=True)
class _Stream:
    """One answer after the other. ``tokens`` are those of the present one, its prompt included."""

    tokens: int = 0
    last: float = field(default_factory=time.perf_counter)
    silence: float = 0.0

    def arrived(self, count: int) -> None:
        now = time.perf_counter()
        self.silence = max(self.silence, now - self.last)
        self.last = now
        self.tokens += count


class Traffic:
    """``width`` answers in flight at all times, from `start` to `stop`."""

    def __init__(self, engine: Engine, vocabulary: int, width: int = 4) -> None:
        self._engine = engine
        self._random = np.random.default_rng(0)
        self._vocabulary = vocabulary
        self._streams = [_Stream() for _ in range(width)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._talk(stream)) for stream in self._streams]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def tokens(self) -> int:
        return sum(stream.tokens for stream in self._streams)

    @property
    def silence_s(self) -> float:
        return max(stream.silence for stream in self._streams)

    def watch(self) -> None:
        """Silences count from now on."""
        for stream in self._streams:
            stream.silence, stream.last = 0.0, time.perf_counter()

    async def settled(self) -> None:
        """Until every stream had a token since now, and any silence of before has come to its end."""
        now = time.perf_counter()
        async with asyncio.timeout(_SETTLE_S):
            while any(stream.last <= now for stream in self._streams):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)

    async def _talk(self, stream: _Stream) -> None:
        while True:
            request = GenerateRequest(
                request_id=uuid.uuid4().hex,
                prompt_ids=self._random.integers(self._vocabulary, size=PROMPT, dtype=np.int32),
                sampling=SamplingParams(max_tokens=ANSWER),
            )
            stream.tokens = PROMPT
            async for chunk in self._engine.generate(request):
                stream.arrived(len(chunk.ids))


class Rig(Protocol):
    """An engine, and what the bench does to it that no replica does."""

    name: str

    @property
    def engine(self) -> Engine: ...

    async def naive(self, trainer: Trainer, offer: Offer, version: int) -> Cost: ...

    async def check(self, offer: Offer) -> None:
        """Raises unless exactly this content is in place."""
        ...


class TransformersRig:
    name = "transformers"

    def __init__(self, folder: Path) -> None:
        self.engine = TransformersEngine(folder, EngineConfig(**_SETTINGS))

    async def naive(self, trainer: Trainer, offer: Offer, version: int) -> Cost:
        engine = self.engine
        assert engine._batcher is not None
        parameters = dict(engine.model.named_parameters())
        began = time.perf_counter()
        async with engine._batcher.paused():
            paused = time.perf_counter()
            await asyncio.to_thread(
                trainer.push_each, offer.content, lambda name, tensor: parameters[name].data.copy_(tensor)
            )
            received = time.perf_counter()
            engine._version = version
            for running in [running for running in engine._running.values() if not running.finished]:
                engine._batcher.cancel(running.engine_id)
                engine._submit(running)
            ended = time.perf_counter()
        return _cost(offer.manifest, len(parameters), began, began, received, ended, ended - paused)

    async def check(self, offer: Offer) -> None:
        parameters = dict(self.engine.model.named_parameters())
        specs = offer.manifest.tensors
        found = await asyncio.to_thread(digest_of, specs, (as_bytes(parameters[spec.name]) for spec in specs))
        if found != offer.manifest.digest:
            raise RuntimeError("the naive publish did not bring the weights that were sent")


class SglangRig:
    name = "sglang"

    def __init__(self, folder: Path, python: str) -> None:
        config = EngineConfig(kind="sglang", device="cpu", sglang=SglangConfig(python=python), **_SETTINGS)
        self.engine = SglangEngine(folder, config, updates=True, decide_within_s=TIMEOUT_S)
        self._known: dict[int, Any] = {}

    async def naive(self, trainer: Trainer, offer: Offer, version: int) -> Cost:
        control = self.engine._api.control
        specs = offer.manifest.tensors
        began = time.perf_counter()
        name, port = uuid.uuid4().hex, await asyncio.to_thread(trainer.call, "open")
        sending = asyncio.create_task(asyncio.to_thread(trainer.call, "broadcast_each", name, offer.content))
        held = time.perf_counter()
        meeting = {"master_address": HOST, "master_port": port, "rank_offset": 1, "world_size": 2, "backend": "gloo"}
        await control("init_weights_update_group", {**meeting, "group_name": name}, timeout_s=TIMEOUT_S)
        await control("pause_generation", {"mode": "retract"})
        await control("begin_weight_update")
        for spec in specs:
            one = {"names": [spec.name], "dtypes": [spec.dtype], "shapes": [list(spec.shape)], "group_name": name}
            last = {"weight_version": str(version)} if spec is specs[-1] else {}
            await control("update_weights_from_distributed", {**one, **last, "flush_cache": False})
        await control("end_weight_update")
        await sending
        received = time.perf_counter()
        await control("destroy_weights_update_group", {"group_name": name})
        await control("flush_cache")
        await control("continue_generation")
        ended = time.perf_counter()
        return _cost(offer.manifest, len(specs), began, began, received, ended, ended - held)

    async def check(self, offer: Offer) -> None:
        """What our own publish left, and proved against the digest, is what each content has to look like."""
        reply = await self.engine._api.control("weights_checker", {"action": "checksum"}, timeout_s=TIMEOUT_S)
        found = [rank["checksums"] for rank in reply["ranks"]]
        if found != self._known.setdefault(offer.content, found):
            raise RuntimeError("the naive publish did not bring the weights that were sent")


async def ours(rig: Rig, trainer: Trainer, offer: Offer, version: int, transport: str, bucket_mb: float) -> Cost:
    sizes = [byte_size(spec) for spec in offer.manifest.tensors]
    buckets = cut_buckets(sizes, int(bucket_mb * 2**20))
    manifest = replace(offer.manifest, version=version, buckets=buckets)
    began = time.perf_counter()
    await rig.engine.prepare(manifest, offer.snapshot)
    prepared = time.perf_counter()
    if transport == "disk":
        await rig.engine.receive(OnDisk(folder=str(offer.snapshot)))
    else:
        port = await asyncio.to_thread(trainer.call, "open")
        meeting = Rendezvous(
            host=HOST, port=port, name=uuid.uuid4().hex, world=2, transport=transport, timeout_s=TIMEOUT_S
        )
        sending = asyncio.to_thread(trainer.call, "broadcast", meeting.name, offer.content, manifest)
        await asyncio.gather(rig.engine.receive(Broadcast(meeting=meeting, rank=1)), sending)
    received = time.perf_counter()
    report = await rig.engine.commit(version)
    return _cost(manifest, len(buckets), began, prepared, received, time.perf_counter(), report.hold_s)


def _cost(
    manifest: WeightManifest, pieces: int, began: float, prepared: float, received: float, ended: float, hold_s: float
) -> Cost:
    return Cost(
        bytes=sum(byte_size(spec) for spec in manifest.tensors),
        pieces=pieces,
        prepare_s=prepared - began,
        receive_s=received - prepared,
        commit_s=ended - received,
        hold_s=hold_s,
    )
