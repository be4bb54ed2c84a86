"""A real SGLang for tests: an engine on a loop of its own thread, and publishing to it as the trainer does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from transformers import AutoModelForCausalLM

from clawrl.engine.config import EngineConfig
from clawrl.engine.protocol import Engine, SwapReport
from clawrl.engine.sglang import SglangEngine
from clawrl.messages import AdapterShape, Addition, WeightManifest
from clawrl.weights.broadcast import Sender, TransferError
from clawrl.weights.manifest import build_manifest, pack_bucket
from clawrl.weights.snapshot import write_snapshot
from clawrl.weights.sources import Broadcast, OnDisk, Rendezvous

T = TypeVar("T")
PYTHON = os.environ.get("CLAWRL_SGLANG_PYTHON", "")
SGLANG = {"python": "env:CLAWRL_SGLANG_PYTHON", "boot_timeout_s": 240}


def why_not() -> str | None:
    """Why SGLang cannot run here."""
    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        return "SGLang does not run here: this CPU has no AVX-512"
    if not PYTHON or not Path(PYTHON).is_file():
        return "SGLang is not installed: `make sglang-cpu` builds its environment, CLAWRL_SGLANG_PYTHON names it"
    return None


needs_sglang = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


def sglang_config(**changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {
        "kind": "sglang",
        "device": "cpu",
        "dtype": "float32",
        "context_length": 512,
        "max_running_requests": 4,
        "kv_blocks": 64,
        "page_size": 32,
        "threads": 1,
        **changes,
    }
    return EngineConfig(**{**settings, "sglang": {**SGLANG, **settings.get("sglang", {})}})


class Loop:
    """An event loop that runs on beside the tests, so that many of them share one engine."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextmanager
def running_sglang(
    folder: Path, *, adapters: AdapterShape | None = None, **changes: Any
) -> Iterator[tuple[Loop, SglangEngine]]:
    loop = Loop()
    engine = SglangEngine(folder, sglang_config(**changes), updates=True, decide_within_s=60.0, adapters=adapters)
    loop.run(engine.start(), 300.0)
    try:
        yield loop, engine
    finally:
        loop.run(engine.stop())
        loop.close()


def other_weights(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Random weights for the model in ``folder``."""
    torch.manual_seed(seed)
    config = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def cold_model(folder: Path, tensors: Mapping[str, torch.Tensor] | None = None) -> torch.nn.Module:
    """What a freshly started engine with these weights would compute with."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if tensors is not None:
        model.load_state_dict(dict(tensors), strict=False)
        model.tie_weights()
    return model


class Publisher:
    """The trainer's side of a publish. Snapshots go below ``root``."""

    def __init__(
        self,
        engine: Engine,
        root: Path,
        *,
        bucket_bytes: int = 60_000,
        timeout_s: float = 20.0,
        addition: Addition | None = None,
    ) -> None:
        self._engine = engine
        self._root = root
        self._bucket_bytes = bucket_bytes
        self._timeout_s = timeout_s
        self._addition = addition

    def _describe(self, version: int, tensors: Mapping[str, torch.Tensor]) -> tuple[WeightManifest, Path]:
        manifest = build_manifest(version, tensors, bucket_bytes=self._bucket_bytes, addition=self._addition)
        return manifest, write_snapshot(self._root, manifest, tensors)

    async def by_broadcast(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        *,
        stop_after: int | None = None,
        flipped: bool = False,
    ) -> None:
        """Until it is received. ``stop_after`` buckets the trainer dies; ``flipped``: a bit changes on the way."""
        manifest, folder = self._describe(version, tensors)
        await self._engine.prepare(manifest, folder)
        sender = Sender("127.0.0.1", "gloo", self._timeout_s)
        meeting = Rendezvous(
            host="127.0.0.1",
            port=sender.address[1],
            name=f"publish-{version}",
            world=2 if self._addition else 1 + self._engine.capabilities.ranks,
            transport="gloo",
            timeout_s=self._timeout_s,
        )

        def send() -> None:
            try:
                sender.connect(meeting.name, meeting.world)
                for bucket in range(len(manifest.buckets))[:stop_after]:
                    data = pack_bucket(manifest, bucket, tensors)
                    if flipped and bucket == len(manifest.buckets) - 1:
                        data[0] ^= 1
                    sender.send(data)
            except TransferError:
                pass  # the engine's own error is the one that tells
            finally:
                sender.close()

        sending = asyncio.create_task(asyncio.to_thread(send))
        try:
            await self._engine.receive(Broadcast(meeting=meeting, rank=1))
        finally:
            await sending

    async def from_disk(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        manifest, folder = self._describe(version, tensors)
        await self._engine.prepare(manifest, folder)
        await self._engine.receive(OnDisk(folder=str(folder)))

    async def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> SwapReport:
        await self.by_broadcast(version, tensors)
        return await self._engine.commit(version)
