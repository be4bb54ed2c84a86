"""The embedded engine: a Hugging Face model under transformers' own continuous batching.

Owns one model, its cache and the requests running on it; everything happens on one event loop, with
forward passes on other threads. Results are token-exact: ids and log-probs are what the loop sampled, each
stamped with the version whose weights were in place when it was sampled. Everything that comes in or goes out is on
the CPU (a bucket of weights may be anywhere); the model, its cache and a version that waits to be committed are on
``config.device``.

Adapters lie beside the weights (`adapters`), and a version of them that is an addition to others than those that are
held brings these along from its snapshot.

A commit swaps tensors between two forward passes and submits every running request anew as
``prompt + generated``: its prefix is recomputed under the new weights, so a token after the swap has the
log-prob that a cold engine with that version would give it. A failed receive or commit changes nothing.
A dead loop fails all requests and makes `health` raise; the replica is then replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from clawrl.engine.adapters import LiveWeights
from clawrl.engine.batching import Batcher
from clawrl.engine.config import EngineConfig
from clawrl.engine.errors import EngineError, UnsupportedRequest, WeightsRefused
from clawrl.engine.grammar import Follower, Grammars, SchemaRefused
from clawrl.engine.limits import check_positions, check_request, check_scored, end_ids
from clawrl.engine.protocol import (
    Capabilities,
    CommitForm,
    GenerateRequest,
    Load,
    ScoreRequest,
    Scores,
    SwapReport,
    TokenChunk,
)
from clawrl.engine.sampling import sample_each
from clawrl.engine.scoring import Prefixes, plan_scoring, score_batch
from clawrl.engine.slots import Slots
from clawrl.engine.staging import Staging
from clawrl.engine.textstream import TextStream
from clawrl.messages import AdapterShape, FinishReason, TokenIds, WeightKind, WeightManifest
from clawrl.weights.broadcast import receive_buckets
from clawrl.weights.manifest import pack_bucket
from clawrl.weights.snapshot import SnapshotError, read_base, read_snapshot
from clawrl.weights.sources import Broadcast, WeightSource

_ids = itertools.count()


@dataclass(slots=True)
class _Running:
    """A request inside the loop. ``attempt`` tells results of a submission from those of an older one."""

    request: GenerateRequest
    stops: TextStream | None
    grammar: Follower | None = None
    ids: list[int] = field(default_factory=list)
    chunks: asyncio.Queue[TokenChunk | EngineError] = field(default_factory=asyncio.Queue)
    engine_id: str = ""
    attempt: int = 0
    finished: bool = False


class TransformersEngine:
    """``generates=False`` makes an engine that only scores and keeps no cache (a judge).

    With ``adapters`` it takes versions that are adapters of that shape.
    """

    def __init__(
        self, folder: Path, config: EngineConfig, *, generates: bool = True, adapters: AdapterShape | None = None
    ) -> None:
        self._folder = folder
        self._config = config
        self._generates = generates
        self._shape = adapters
        self._base: dict[str, torch.Tensor] | None = None
        self._version = 0
        self._running: dict[str, _Running] = {}
        self._batcher: Batcher | None = None
        self._model: PreTrainedModel | None = None
        # One swap or scoring pass at a time: a score must not read weights of two versions.
        self._weights_lock = asyncio.Lock()
        self._prefixes = Prefixes()
        self._worker = ThreadPoolExecutor(1, "engine", lambda: torch.set_num_threads(config.threads))
        self.slots = Slots(
            capacity=config.kv_blocks * config.page_size,
            page_size=config.page_size,
            limit=config.max_running_requests,
        )
        self.capabilities = Capabilities(
            commit_form=CommitForm.STAGED,
            weight_kinds=frozenset(WeightKind) if adapters else frozenset({WeightKind.FULL}),
            context_length=config.context_length,
            max_running_requests=config.max_running_requests,
            scores=True,
            # Where the adapters' base is not what this engine holds, it lies beside their snapshot.
            reads_snapshots=adapters is not None,
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def load(self) -> Load:
        return Load(running=self.slots.running, waiting=self.slots.waiting)

    def stats(self) -> Mapping[str, Any]:
        return {}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @property
    def model(self) -> PreTrainedModel:
        if self._model is None:
            raise EngineError("the engine has not been started")
        return self._model

    async def start(self) -> None:
        torch.set_num_threads(self._config.threads)
        self._model, self._tokenizer = await asyncio.to_thread(self._load)
        self._weights = LiveWeights(self.model, self._shape)
        self._staging = Staging(
            self._weights.whole, self.model.device, adapters=self._weights.adapters, shape=self._shape
        )
        if self._generates:
            model, generation = self.model.config, self.model.generation_config
            self._eos_ids = end_ids(model.eos_token_id, generation.eos_token_id, self._tokenizer.eos_token_id)
            vocabulary = self.model.get_input_embeddings().num_embeddings
            self._grammars = Grammars(self._tokenizer, vocabulary, self._eos_ids)
            self._batcher = Batcher(self.model, self._config, eos_ids=self._eos_ids)
            self._batcher.start()

    async def stop(self) -> None:
        for running in list(self._running.values()):
            self._fail(running, EngineError("the engine is shutting down"))
        if self._batcher:
            await asyncio.to_thread(self._batcher.stop)
        self._worker.shutdown(wait=False, cancel_futures=True)

    def health(self) -> None:
        if self._generates:
            self._loop_of_generation().check()

    # -- generation ---------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self._validate(request)
        grammar = await self._grammar(request.sampling.json_schema)
        tokens = len(request.prompt_ids) + request.sampling.max_tokens
        async with self.slots.reserve(tokens, within_s=request.place_within_s):
            stops = TextStream(self._tokenizer, request.sampling.stop) if request.sampling.stop else None
            running = _Running(request=request, stops=stops, grammar=grammar)
            self._running[request.request_id] = running
            try:
                self._submit(running)
                while True:
                    item = await running.chunks.get()
                    if isinstance(item, EngineError):
                        raise item
                    yield item
                    if item.finish_reason is not None:
                        return
            finally:
                del self._running[request.request_id]
                if not running.finished:
                    self._loop_of_generation().cancel(running.engine_id)

    def _validate(self, request: GenerateRequest) -> None:
        """Refuse here whatever would kill the loop for everybody."""
        if request.request_id in self._running:
            raise UnsupportedRequest(f"request {request.request_id} is running already")
        vocabulary = self.model.get_input_embeddings().num_embeddings
        check_request(request, context_length=self._config.context_length, vocabulary=vocabulary)

    def _submit(self, running: _Running) -> None:
        """Queue ``prompt + generated so far`` under a fresh id; results of earlier submissions are ignored."""
        running.attempt += 1
        running.engine_id = f"{running.request.request_id}#{next(_ids)}"
        attempt, base = running.attempt, len(running.ids)

        def deliver(output: GenerationOutput) -> None:
            if attempt != running.attempt or running.finished:
                return
            try:
                self._collect(running, output, base)
            except Exception as error:
                # Raising here would skip the other requests of this batch, and their last tokens with it.
                self._loop_of_generation().cancel(running.engine_id)
                self._fail(running, EngineError(f"{type(error).__name__}: {error}"))

        self._loop_of_generation().submit(
            running.engine_id,
            [*running.request.prompt_ids.tolist(), *running.ids],
            running.request.sampling,
            max_new_tokens=running.request.sampling.max_tokens - base,
            deliver=deliver,
            grammar=None if running.grammar is None else running.grammar.again(running.ids),
        )

    async def _grammar(self, schema: str) -> Follower | None:
        if not schema:
            return None
        try:
            return await asyncio.to_thread(self._grammars.follower, schema)
        except SchemaRefused as refused:
            raise UnsupportedRequest(f"this schema cannot be followed: {refused}", param="json_schema") from None

    def _collect(self, running: _Running, output: GenerationOutput, base: int) -> None:
        if output.status == RequestStatus.FAILED:
            return self._fail(running, EngineError(f"generation failed: {output.error}"))
        known = len(running.ids) - base
        fresh, logps = output.generated_tokens[known:], output.logprobs[known:]
        if len(fresh) != len(logps):
            return self._fail(running, EngineError(f"{len(fresh)} tokens came with {len(logps)} log-probs"))
        for position, token in enumerate(fresh):
            running.ids.append(token)
            if running.stops and self._hits_stop(running.stops, token):
                fresh, logps = fresh[: position + 1], logps[: position + 1]
                self._loop_of_generation().cancel(running.engine_id)
                return self._emit(running, fresh, logps, FinishReason.STOP)
        reason = None
        if output.is_finished():
            reason = FinishReason.STOP if running.ids and running.ids[-1] in self._eos_ids else FinishReason.LENGTH
        if fresh or reason:
            self._emit(running, fresh, logps, reason)

    @staticmethod
    def _hits_stop(stops: TextStream, token: int) -> bool:
        stops.push([token])
        return stops.stopped

    def _emit(self, running: _Running, ids: Sequence[int], logps: Sequence[float], reason: FinishReason | None) -> None:
        running.finished = reason is not None
        running.chunks.put_nowait(
            TokenChunk(
                ids=np.asarray(ids, dtype=np.int32),
                logps=np.asarray(logps, dtype=np.float32),
                version=self._version,
                finish_reason=reason,
            )
        )

    @staticmethod
    def _fail(running: _Running, error: EngineError) -> None:
        running.finished = True
        running.chunks.put_nowait(error)

    async def sample(self, request: GenerateRequest, times: int) -> list[TokenIds | Exception]:
        return await sample_each(self, request, times)

    # -- scoring ------------------------------------------------------------------------------------

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        check_scored(requests, self._config.context_length)
        results: dict[int, Scores] = {}
        loop = asyncio.get_running_loop()
        for group in plan_scoring(requests, self._config.score_batch_tokens):
            async with self._weights_lock:
                batch = [requests[index] for index in group]
                scores = await loop.run_in_executor(
                    self._worker, score_batch, self.model, batch, self._version, self._prefixes
                )
            results.update(zip(group, scores, strict=True))
        return [results[index] for index in range(len(requests))]

    # -- weights ------------------------------------------------------------------------------------

    async def prepare(self, manifest: WeightManifest, snapshot: Path) -> None:
        self._base = None
        self._staging.begin(manifest)
        try:
            self._base = await asyncio.to_thread(self._other_base, manifest, snapshot)
        except SnapshotError as error:
            self._staging.drop()
            raise WeightsRefused(
                f"this engine holds another base: {error}; state_dir must be on a file system that every replica's "
                "machine shares"
            ) from error

    def _other_base(self, manifest: WeightManifest, snapshot: Path) -> dict[str, torch.Tensor] | None:
        """The whole weights below the adapters of ``manifest``, unless they are those that are held."""
        addition = manifest.addition
        if addition is None or addition.base_digest == self._weights.base_digest():
            return None
        base, tensors = read_base(snapshot, manifest)
        if {spec.name: spec for spec in base.tensors} != self._weights.whole:
            raise SnapshotError(f"version {addition.base_version} is of another model")
        return {name: tensor.to(self.model.device) for name, tensor in tensors.items()}

    async def receive(self, source: WeightSource) -> None:
        arriving = self._arriving(source)
        # On other threads: waiting, copying and the digest take long enough to be felt by a stream.
        while (item := await asyncio.to_thread(next, arriving, None)) is not None:
            await self.receive_bucket(*item)

    async def receive_bucket(self, bucket: int, data: torch.Tensor) -> None:
        """Take one bucket as flat uint8 bytes, in any order, each once. The last one checks the digest."""
        await asyncio.to_thread(self._staging.receive, bucket, data)

    def _arriving(self, source: WeightSource) -> Iterator[tuple[int, torch.Tensor]]:
        manifest = self._staging.manifest
        if isinstance(source, Broadcast):
            yield from receive_buckets(source.meeting, source.rank, manifest)
            return
        _, tensors = read_snapshot(Path(source.folder))
        for bucket in range(len(manifest.buckets)):
            yield bucket, pack_bucket(manifest, bucket, tensors)

    async def abort(self) -> None:
        self._staging.drop()
        self._base = None

    async def commit(self, version: int) -> SwapReport:
        manifest = self._staging.manifest
        tensors, base = self._staging.take(version), self._base
        self._base = None
        async with self._weights_lock:
            if self._batcher is None:
                self._install(manifest, tensors, base)
                return SwapReport(version=version, hold_s=0.0, requests_carried=0)
            async with self._batcher.paused():
                began = time.perf_counter()
                self._install(manifest, tensors, base)
                carried = [running for running in self._running.values() if not running.finished]
                for running in carried:
                    self._batcher.cancel(running.engine_id)
                    self._submit(running)
                hold_s = time.perf_counter() - began
        return SwapReport(version=version, hold_s=hold_s, requests_carried=len(carried))

    def _install(
        self, manifest: WeightManifest, tensors: dict[str, torch.Tensor], base: dict[str, torch.Tensor] | None
    ) -> None:
        self._weights.install(manifest, tensors, base)
        self._prefixes.clear()
        self._version = manifest.version

    # -- loading ------------------------------------------------------------------------------------

    def _load(self) -> tuple[Any, PreTrainedTokenizerBase]:
        device = choose_device(self._config.device)
        tokenizer = AutoTokenizer.from_pretrained(self._folder)
        model = AutoModelForCausalLM.from_pretrained(
            self._folder, dtype=getattr(torch, self._config.dtype), attn_implementation="sdpa"
        ).eval()
        model.requires_grad_(False)
        check_positions(model.config, self._config.context_length)
        return model.to(device), tokenizer

    def _loop_of_generation(self) -> Batcher:
        if self._batcher is None:
            raise EngineError("this engine was not started to generate")
        return self._batcher


def choose_device(asked: str) -> torch.device:
    """Where ``engine.device`` puts the model. Raises `EngineError` where there is no such device."""
    sees_a_gpu = torch.cuda.is_available()
    if asked == "cuda" and not sees_a_gpu:
        raise EngineError("engine.device is cuda, but torch sees no GPU here: give the replica num_gpus, or set cpu")
    if asked == "auto":
        asked = "cuda" if sees_a_gpu else "cpu"
    return torch.device(asked)
