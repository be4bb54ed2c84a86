"""Three ways to bring a version to an engine on the same device, where NCCL has nothing to offer: it refuses two
ranks on one GPU.

- *pointers*: the trainer's tensors go to an engine in the same process as buckets that never leave the device; only
  the digest reads them out;
- *gloo*: as clawrl publishes today: gathered to the CPU, broadcast over loopback, verified, moved to the device;
- *ipc*: another process opens the trainer's memory and copies from it. What a hand-over between processes would cost;
  no engine takes part.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing
from transformers import PreTrainedModel

from clawrl.engine.protocol import GenerateRequest, SwapReport
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import SamplingParams, WeightManifest
from clawrl.training.model import full_parameters, load_model
from clawrl.weights.broadcast import Sender, receive_buckets
from clawrl.weights.manifest import build_manifest, byte_size, pack_bucket
from clawrl.weights.sources import Rendezvous
from tests.engine_tools import Answer, collect
from tests.gpu import neighbour
from tests.gpu.bench import Bench, prompt_of, started
from tests.gpu.shapes import draw_again

_NO_SNAPSHOT = Path("/nowhere")  # a staged engine needs none
_BUCKET_BYTES = 64_000_000
_TIMEOUT_S = 60.0
_PART = ("digest", "hand-over", "hold", "carried", "after - cold")


async def publish(bench: Bench) -> None:
    shape = bench.shape
    source = load_model(bench.job.folder, dtype=getattr(torch, shape.dtype), device=bench.device)
    source.requires_grad_(False)
    async with started(bench, shape.dtype) as running:
        with bench.part("before - cold, other version", *(f"pointers: {figure}" for figure in _PART)):
            draw_again(source, shape, seed=1)
            await _pointers(bench, running, source)
        with bench.part(*(f"gloo: {figure}" for figure in ("gather", *_PART))):
            draw_again(source, shape, seed=2)
            await _gloo(bench, running, source)
    bench.peak_memory()
    with bench.part("ipc: hand-over"):
        _ipc(bench, source)


async def _pointers(bench: Bench, running: TransformersEngine, source: PreTrainedModel) -> None:
    tensors = {name: parameter.detach() for name, parameter in source.named_parameters()}
    began = time.perf_counter()
    manifest = build_manifest(1, tensors, bucket_bytes=_BUCKET_BYTES)
    bench.figure("size", sum(byte_size(spec) for spec in manifest.tensors) / 1e9)
    bench.figure("pointers: digest", time.perf_counter() - began, "over every byte, read out of the device")
    async with _clients(bench, running, 1) as answers:
        await running.prepare(manifest, _NO_SNAPSHOT)
        began = time.perf_counter()
        for bucket in range(len(manifest.buckets)):
            await running.receive_bucket(bucket, pack_bucket(manifest, bucket, tensors))
        bench.wait()
        bench.figure("pointers: hand-over", time.perf_counter() - began, "the receiver's digest included")
        _swapped(bench, "pointers", await running.commit(1))
    before, after = _against_cold(source, await answers, 1)
    bench.difference("pointers: after - cold", after, bench.shape.dtype)
    # Had the two versions much the same log-probs, the row above could not fail.
    apart = float(before.mean())
    bench.figure("before - cold, other version", apart, "a wrong version is this far off; at least 0.2", ok=apart > 0.2)


async def _gloo(bench: Bench, running: TransformersEngine, source: PreTrainedModel) -> None:
    async with _clients(bench, running, 2) as answers:
        began = time.perf_counter()
        tensors = await asyncio.to_thread(lambda: dict(full_parameters(source)))
        bench.figure("gloo: gather", time.perf_counter() - began, "from the device to the CPU")
        began = time.perf_counter()
        manifest = await asyncio.to_thread(build_manifest, 2, tensors, bucket_bytes=_BUCKET_BYTES)
        bench.figure("gloo: digest", time.perf_counter() - began)
        await running.prepare(manifest, _NO_SNAPSHOT)
        began = time.perf_counter()
        await _broadcast(running, manifest, tensors)
        bench.figure("gloo: hand-over", time.perf_counter() - began, "broadcast, digest and the way to the device")
        _swapped(bench, "gloo", await running.commit(2))
    _, after = _against_cold(source, await answers, 2)
    bench.difference("gloo: after - cold", after, bench.shape.dtype)


async def _broadcast(
    running: TransformersEngine, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Sender and receiver are two threads of this process; the bytes go over loopback as between two."""
    loop = asyncio.get_running_loop()
    sender = Sender("127.0.0.1", "gloo", _TIMEOUT_S)
    host, port = sender.address
    meeting = Rendezvous(host=host, port=port, name="gpu", world=2, transport="gloo", timeout_s=_TIMEOUT_S)

    def send() -> None:
        sender.connect("gpu", 2)
        for bucket in range(len(manifest.buckets)):
            sender.send(pack_bucket(manifest, bucket, tensors))

    def receive() -> None:
        for bucket, data in receive_buckets(meeting, 1, manifest):
            asyncio.run_coroutine_threadsafe(running.receive_bucket(bucket, data), loop).result(_TIMEOUT_S)

    await asyncio.gather(asyncio.to_thread(send), asyncio.to_thread(receive))
    sender.close()


def _swapped(bench: Bench, way: str, report: SwapReport) -> None:
    bench.figure(f"{way}: hold", 1e3 * report.hold_s, "sampling stood still; streams waited")
    bench.figure(f"{way}: carried", report.requests_carried, "in flight at the swap", ok=report.requests_carried > 0)


# -- requests in flight -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _clients(
    bench: Bench, running: TransformersEngine, version: int
) -> AsyncIterator[asyncio.Future[list[Answer]]]:
    """Streams that run while the body publishes ``version``; afterwards, their answers that have tokens of both."""
    count = min(8, bench.shape.running)
    tasks = [
        asyncio.create_task(
            _straddle(running, prompt_of(bench.shape, seed, bench.shape.context // 8), version, f"{version}-{seed}")
        )
        for seed in range(count)
    ]
    gathered = asyncio.gather(*tasks)
    try:
        await asyncio.sleep(0.2)
        yield gathered
        await gathered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _straddle(running: TransformersEngine, prompt: np.ndarray, version: int, name: str) -> Answer:
    """Ask again and again until an answer has tokens of ``version``; the first such one, a few tokens into it."""
    room = running.capabilities.context_length - len(prompt)
    for attempt in itertools.count():
        asked = GenerateRequest(
            request_id=f"{name}-{attempt}", prompt_ids=prompt, sampling=SamplingParams(max_tokens=room)
        )
        chunks, fresh = [], 0
        async with contextlib.aclosing(running.generate(asked)) as stream:
            async for chunk in stream:
                chunks.append(chunk)
                fresh += len(chunk.ids) if chunk.version == version else 0
                if fresh >= 24:
                    break
        if fresh:
            return collect(prompt, chunks)
    raise AssertionError("unreachable")


@torch.no_grad()
def _against_cold(source: PreTrainedModel, answers: list[Answer], version: int) -> tuple[np.ndarray, np.ndarray]:
    """Absolute differences to one plain pass of the new weights over each answer: of older tokens, of new ones."""
    before, after = [], []
    for one in answers:
        ids = torch.from_numpy(np.concatenate([one.prompt, one.ids]).astype(np.int64)).to(source.device)
        start = len(one.prompt)
        logits_TV = source(input_ids=ids[None], logits_to_keep=len(one.ids) + 1).logits[0, :-1].float()
        cold = logits_TV.log_softmax(-1).gather(-1, ids[start:, None])[:, 0].cpu().numpy()
        off, new = np.abs(cold - one.logps), one.versions == version
        before.append(off[~new])
        after.append(off[new])
    return np.concatenate(before), np.concatenate(after)


# -- another process ----------------------------------------------------------------------------------


def _ipc(bench: Bench, source: PreTrainedModel) -> None:
    tensors = {name: parameter.detach() for name, parameter in source.named_parameters()}
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=neighbour.take_over, args=(inbox, outbox), daemon=True)
    process.start()
    try:
        assert outbox.get(timeout=_TIMEOUT_S) == "ready"
        began = time.perf_counter()
        inbox.put(tensors)
        said = outbox.get(timeout=_TIMEOUT_S)
        seconds = time.perf_counter() - began
    finally:
        process.kill()
        process.join()
    if isinstance(said, str):
        raise RuntimeError(f"the other process: {said}")
    copied_s, found = said
    same = found == neighbour.checksum(tensors)
    how = "handles" if bench.device.type == "cuda" else "shared memory"
    bench.figure("ipc: hand-over", seconds, f"{how} and a copy, of which the copy {copied_s:.3f}", ok=same)
