"""The engine for GPUs: SGLang as a child process, token-in and token-out over its own HTTP interface.

Owns the child (`sglang_server`), the requests running in it and its weights (`sglang_weights`). Ids are ours in both
directions: prompts go as ids, answers come as ids with the log-prob of each at the temperature that sampled it, and
SGLang's text is ignored. What would end the server for everybody, such as an id outside the vocabulary, is refused
here.

Which version sampled which tokens SGLang says at the end of an answer; chunks on the way carry the version that serves
when they arrive. With adapters (`sglang_adapters`) answers are cut where the version changes, and every chunk is of
one. When the child ends, all requests fail with `EngineError` and `health` raises.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from clawrl.engine.config import EngineConfig
from clawrl.engine.errors import EngineError, UnsupportedRequest
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
from clawrl.engine.sglang_adapters import Serving, SglangAdapters
from clawrl.engine.sglang_api import Refusal, SglangError
from clawrl.engine.sglang_moving import moving
from clawrl.engine.sglang_scores import TOLERANCES, WrongReply
from clawrl.engine.sglang_scoring import score_all
from clawrl.engine.sglang_server import SglangServer
from clawrl.engine.sglang_weights import SglangWeights
from clawrl.engine.slots import Slots
from clawrl.messages import (
    AdapterShape,
    FinishReason,
    SamplingParams,
    TokenIds,
    VersionSpan,
    WeightKind,
    WeightManifest,
)
from clawrl.tasks import spawn
from clawrl.weights.sources import WeightSource

log = logging.getLogger(__name__)
OLDEST = (0, 5, 20)
"""Older ones do not say which version sampled which token, or have no /ready."""
_SESSIONS_SINCE = (0, 5, 21)
# Older ones were not tried.
_ADAPTERS_SINCE = (0, 5, 23)


class SglangEngine:
    """``updates``: versions will be published to it; ``decide_within_s`` bounds a hold that nobody ends.

    With ``adapters`` some of these may be adapters of that shape.
    """

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        *,
        updates: bool = False,
        decide_within_s: float = 0.0,
        adapters: AdapterShape | None = None,
    ) -> None:
        self._folder = folder
        self._config = config
        self._updates = updates
        self._decide_within_s = decide_within_s
        self._shape = adapters
        self._server = SglangServer(folder, config, adapters)
        self._api = self._server.api
        self._weights: SglangWeights | None = None
        self._adapters: SglangAdapters | None = None
        self._release = ""
        # SGLang packs its cache itself; only how many requests it has at once is ours to say.
        self.slots = Slots(capacity=2**62, page_size=1, limit=config.max_running_requests)
        self.capabilities = Capabilities(
            commit_form=CommitForm.IN_PLACE,
            weight_kinds=frozenset(WeightKind) if adapters else frozenset({WeightKind.FULL}),
            context_length=config.context_length,
            max_running_requests=config.max_running_requests,
            scores=True,
            ranks=config.tp_size,
            reads_snapshots=True,
        )

    @property
    def version(self) -> int:
        if self._adapters is not None:
            return self._adapters.serving.version
        return self._weights.version if self._weights else 0

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @property
    def load(self) -> Load:
        return Load(running=self.slots.running, waiting=self.slots.waiting)

    def stats(self) -> Mapping[str, Any]:
        return {"sglang": self._release, **(self._weights.stats() if self._weights else {})}

    async def start(self) -> None:
        await asyncio.to_thread(self._load_settings)
        await self._server.start()
        try:
            info = await self._api.info()
            self._release = str(info.get("version"))
            release = _release(self._release)
            if release < OLDEST:
                raise EngineError(f"SGLang {self._release} is too old; install {'.'.join(map(str, OLDEST))} or newer")
            if self._updates:
                self._weights = SglangWeights(
                    self._api,
                    self._folder,
                    self._config.sglang,
                    dtype=getattr(torch, self._config.dtype),
                    sessions=release >= _SESSIONS_SINCE,
                    decide_within_s=self._decide_within_s,
                    running=lambda: self.slots.running,
                )
                await self._weights.start()
                if self._shape is not None:
                    self._adapters = self._start_adapters(release, self._weights, self._shape)
        except Exception as error:
            await self._server.stop()
            raise error if isinstance(error, EngineError) else EngineError(str(error)) from error

    def _start_adapters(self, release: tuple[int, ...], weights: SglangWeights, shape: AdapterShape) -> SglangAdapters:
        if release < _ADAPTERS_SINCE:
            raise EngineError(
                f"SGLang {self._release} is too old to take adapters as versions; install "
                f"{'.'.join(map(str, _ADAPTERS_SINCE))} or newer, or set publish.adapters to merged"
            )
        return SglangAdapters(
            self._api,
            weights,
            self._folder,
            shape,
            dtype=getattr(torch, self._config.dtype),
            ranks=self._config.tp_size,
            running=lambda: self.slots.running,
        )

    async def stop(self) -> None:
        if self._weights is not None:
            await self._weights.stop()
        await self._server.stop()

    def health(self) -> None:
        self._server.check()
        if self._weights is not None:
            self._weights.check()

    # -- generation ---------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self._validate(request)
        async with self.slots.reserve(1, within_s=request.place_within_s):
            if self._adapters is None:
                answer = self._submit(request)
            else:
                answer = moving(request, self._adapters, self._submit, self._tokenizer, self._end_ids)
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _submit(self, request: GenerateRequest, adapters: str | None = None) -> AsyncGenerator[TokenChunk, None]:
        # Of one length, so that none begins with another: SGLang aborts whatever begins with an id.
        rid, said, finished = uuid.uuid4().hex, 0, False
        body = {**self._body(request, adapters), "rid": rid, "return_logprob": True}
        try:
            async with aclosing(self._api.stream(body)) as events:
                async for event in events:
                    chunk = self._read(event, said)
                    said += len(chunk.ids)
                    finished = chunk.finish_reason is not None
                    if said or finished:
                        yield chunk
                    if finished:
                        return
            raise EngineError("SGLang ended an answer in the middle")
        except Refusal as refusal:
            finished = True
            raise UnsupportedRequest(str(refusal), param=_field_of(str(refusal))) from None
        except (SglangError, WrongReply, KeyError) as error:
            raise EngineError(f"{type(error).__name__}: {error}") from error
        finally:
            if not finished:
                # Nobody waits for the reply; the generator may be closing while its task is torn down.
                spawn(self._abort(rid))

    def _read(self, event: Mapping[str, Any], said: int) -> TokenChunk:
        """What is new in an event of an answer of which ``said`` tokens are known."""
        meta = event["meta_info"]
        reason = meta.get("finish_reason")
        if reason is not None and reason["type"] == "abort":
            # What it cannot do it says in the stream, too, with a token that nobody sampled.
            kind = Refusal if reason.get("status_code") == 400 else SglangError
            raise kind(f"SGLang aborted an answer: {reason.get('message')}")
        fresh = meta.get("output_token_logprobs") or []
        ids, logps = [int(entry[1]) for entry in fresh], [float(entry[0]) for entry in fresh]
        if ids != list(event.get("output_ids") or []):
            raise WrongReply(f"{len(event.get('output_ids') or [])} ids came with {len(ids)} log-probs")
        finish = None
        if reason is not None:
            finish = FinishReason.LENGTH if reason["type"] == "length" else FinishReason.STOP
        return TokenChunk(
            ids=np.asarray(ids, dtype=np.int32),
            logps=np.asarray(logps, dtype=np.float32),
            version=self.version,
            finish_reason=finish,
            spans=None if finish is None else _spans(meta, said + len(ids)),
        )

    async def _abort(self, rid: str) -> None:
        try:
            await self._api.control("abort_request", {"rid": rid})
        except SglangError as error:
            log.info("an abandoned answer could not be aborted: %s", error)

    async def sample(self, request: GenerateRequest, times: int) -> list[TokenIds | Exception]:
        """One call: SGLang computes the prompt once for all of them."""
        self._validate(request)
        async with self.slots.reserve(1, within_s=request.place_within_s):
            try:
                with self._serving() as serving:
                    body = self._body(request, serving.name if serving else None)
                    body["sampling_params"] = {**body["sampling_params"], "n": times}
                    replies = await self._api.generate(body)
            except Refusal as refusal:
                raise UnsupportedRequest(str(refusal), param=_field_of(str(refusal))) from None
            except SglangError as error:
                raise EngineError(str(error)) from error
        replies = replies if isinstance(replies, list) else [replies]
        return [
            EngineError("SGLang aborted an answer")
            if reply["meta_info"]["finish_reason"]["type"] == "abort"
            else np.asarray(reply["output_ids"], dtype=np.int32)
            for reply in replies
        ]

    def _validate(self, request: GenerateRequest) -> None:
        check_request(request, context_length=self._config.context_length, vocabulary=self._vocabulary)

    def _body(self, request: GenerateRequest, adapters: str | None) -> dict[str, Any]:
        body = {
            "input_ids": request.prompt_ids.tolist(),
            "sampling_params": sampling_body(request.sampling, self._end_ids),
        }
        return body if adapters is None else {**body, "lora_path": adapters}

    def _serving(self) -> AbstractContextManager[Serving | None]:
        return nullcontext() if self._adapters is None else self._adapters.using()

    # -- scoring ------------------------------------------------------------------------------------

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        check_scored(requests, self._config.context_length)
        tolerance = TOLERANCES[self._config.dtype]
        try:
            return await score_all(requests, self._ask_scores, vocabulary=self._vocabulary, tolerance=tolerance)
        except Refusal as refusal:
            raise UnsupportedRequest(str(refusal)) from None
        except (SglangError, WrongReply, KeyError, ValueError) as error:
            raise EngineError(f"SGLang's log-probs cannot be used: {error}") from error

    async def _ask_scores(self, body: Mapping[str, Any]) -> Any:
        with self._serving() as serving:
            if serving is None:
                return await self._api.generate(body)
            replies = await self._api.generate({**body, "lora_path": serving.name})
            # SGLang names the whole weights alone.
            for reply in replies:
                reply["meta_info"]["weight_version"] = str(serving.version)
            return replies

    # -- weights ------------------------------------------------------------------------------------

    async def prepare(self, manifest: WeightManifest, snapshot: Path) -> None:
        self._server.check()
        await self._swaps().prepare(manifest, snapshot)

    async def receive(self, source: WeightSource) -> None:
        await self._swaps().receive(source)

    async def commit(self, version: int) -> SwapReport:
        return await self._swaps().commit(version)

    async def abort(self) -> None:
        await self._swaps().abort()

    def _swaps(self) -> SglangWeights | SglangAdapters:
        if self._weights is None:
            raise EngineError("this engine was not started to take new weights")
        return self._adapters or self._weights

    # -- loading ------------------------------------------------------------------------------------

    def _load_settings(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(self._folder)
        model = AutoConfig.from_pretrained(self._folder)
        text = model.get_text_config()
        check_positions(text, self._config.context_length)
        self._vocabulary = int(text.vocab_size)
        try:
            generation = GenerationConfig.from_pretrained(self._folder)
        except OSError:
            generation = GenerationConfig()
        self._end_ids = end_ids(text.eos_token_id, generation.eos_token_id, self._tokenizer.eos_token_id)


def sampling_body(sampling: SamplingParams, end: Sequence[int]) -> dict[str, Any]:
    """SGLang's sampling parameters, one for each of ours; ``end`` are the ids that end an answer."""
    body: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "max_new_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(end),
        "skip_special_tokens": False,
    }
    if sampling.json_schema:
        body["json_schema"] = sampling.json_schema
    return body


def _spans(meta: Mapping[str, Any], length: int) -> tuple[VersionSpan, ...]:
    """Which version sampled which of the answer's ``length`` tokens."""
    spans = meta.get("weight_versions")
    if spans is None:
        raise WrongReply("SGLang does not say which version sampled which token")
    found = tuple(
        VersionSpan(start=int(s["start"]), end=int(s["end"]), version=int(s["version"]))
        for s in spans
        if int(s["end"]) > int(s["start"])
    )
    if (found[-1].end if found else 0) != length:
        raise WrongReply(f"version spans cover {found[-1].end if found else 0} of {length} tokens")
    return found


def _release(text: str) -> tuple[int, ...]:
    """``0.5.23`` and ``0.5.12.post1`` as numbers that compare."""
    parts = []
    for part in text.split(".")[:3]:
        digits = "".join(character for character in part if character.isdigit())
        parts.append(int(digits or 0))
    return tuple(parts)


def _field_of(message: str) -> str | None:
    """Which of our fields SGLang's sentence is about, where it can be told."""
    words = message.lower()
    for sign, name in (("grammar", "json_schema"), ("schema", "json_schema"), ("temperature", "temperature")):
        if sign in words:
            return name
    return "max_tokens" if "context length" in words else None
