"""The engine for GPUs: SGLang as a child process, token-in and token-out over its own HTTP interface.

Owns the child (`sglang_server`), the requests running in it and its weights (`sglang_weights`). Ids are ours in both
directions: prompts go as ids, answers come as ids with the log-prob of each at the temperature that sampled it, and
SGLang's text is ignored. What would end the server for everybody, such as an id outside the vocabulary, is refused
here.

Which version sampled which tokens SGLang says at the end of an answer; chunks on the way carry the version that serves
when they arrive. When the child ends, all requests fail with `EngineError` and `health` raises.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from clawrl.engine.config import EngineConfig
from clawrl.engine.errors import EngineError, UnsupportedRequest
from clawrl.engine.limits import check_request, check_scored, end_ids
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
from clawrl.engine.sglang_api import Refusal, SglangError
from clawrl.engine.sglang_scores import MOST_ENTRIES, WrongReply, first_candidates, read_scores, score_body, version_of
from clawrl.engine.sglang_server import SglangServer
from clawrl.engine.sglang_weights import SglangWeights
from clawrl.engine.slots import Slots
from clawrl.messages import FinishReason, SamplingParams, TokenIds, VersionSpan, WeightKind, WeightManifest
from clawrl.weights.sources import WeightSource

log = logging.getLogger(__name__)
OLDEST = (0, 5, 20)
"""Older ones do not say which version sampled which token, or have no /ready."""
_SESSIONS_SINCE = (0, 5, 21)


@dataclass(slots=True)
class _Answer:
    """A response being written. Where SGLang's pause aborts it, another submission goes on from ``ids``."""

    request: GenerateRequest
    ids: list[int] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)


class SglangEngine:
    """``updates``: versions will be published to it; ``decide_within_s`` bounds a hold that nobody ends."""

    def __init__(
        self, folder: Path, config: EngineConfig, *, updates: bool = False, decide_within_s: float = 0.0
    ) -> None:
        self._folder = folder
        self._config = config
        self._updates = updates
        self._decide_within_s = decide_within_s
        self._server = SglangServer(folder, config)
        self._api = self._server.api
        self._weights: SglangWeights | None = None
        self._release = ""
        # SGLang packs its cache itself; only how many requests it has at once is ours to say.
        self.slots = Slots(capacity=2**62, page_size=1, limit=config.max_running_requests)
        self.capabilities = Capabilities(
            commit_form=CommitForm.IN_PLACE,
            weight_kinds=frozenset({WeightKind.FULL}),
            context_length=config.context_length,
            max_running_requests=config.max_running_requests,
            scores=True,
            ranks=config.tp_size,
        )

    @property
    def version(self) -> int:
        return self._weights.version if self._weights else 0

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @property
    def load(self) -> Load:
        return Load(running=self.slots.running, waiting=self.slots.waiting)

    @property
    def pid(self) -> int | None:
        """The process that everything of SGLang's ends with."""
        return self._server.pid

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
        except Exception as error:
            await self._server.stop()
            raise error if isinstance(error, EngineError) else EngineError(str(error)) from error

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
            answer = _Answer(request)
            while True:
                async with aclosing(self._submit(answer)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        if chunk.finish_reason is not None:
                            return
                # Aborted by a pause: it goes on, with what was said as its beginning, when the pause is over.
                await self._held()

    async def _submit(self, answer: _Answer) -> AsyncGenerator[TokenChunk, None]:
        """One request of SGLang's. Ends without a finish reason where a pause aborted it."""
        # Of one length, so that none begins with another: SGLang aborts whatever begins with an id.
        rid, base, finished = uuid.uuid4().hex, len(answer.ids), False
        body = {**self._body(answer.request, answer.ids), "rid": rid, "return_logprob": True}
        try:
            async with aclosing(self._api.stream(body)) as events:
                async for event in events:
                    chunk = self._read(answer, event, base)
                    finished = event["meta_info"].get("finish_reason") is not None
                    if chunk is not None:
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
                _spawn(self._abort(rid))

    def _read(self, answer: _Answer, event: Mapping[str, Any], base: int) -> TokenChunk | None:
        meta = event["meta_info"]
        reason = meta.get("finish_reason")
        if reason is not None and reason["type"] == "abort" and not self._is_held_abort(reason):
            # What it cannot do it says in the stream, too, with a token that nobody sampled.
            kind = Refusal if reason.get("status_code") == 400 else SglangError
            raise kind(f"SGLang aborted an answer: {reason.get('message')}")
        fresh = meta.get("output_token_logprobs") or []
        ids, logps = [int(entry[1]) for entry in fresh], [float(entry[0]) for entry in fresh]
        if ids != list(event.get("output_ids") or []):
            raise WrongReply(f"{len(event.get('output_ids') or [])} ids came with {len(ids)} log-probs")
        answer.ids += ids
        finish, spans = None, None
        if reason is not None:
            answer.spans += _spans(meta, base)
            if reason["type"] != "abort":
                finish = FinishReason.LENGTH if reason["type"] == "length" else FinishReason.STOP
                spans = _joined(answer.spans, len(answer.ids))
        if not ids and finish is None:
            return None
        return TokenChunk(
            ids=np.asarray(ids, dtype=np.int32),
            logps=np.asarray(logps, dtype=np.float32),
            version=self.version,
            finish_reason=finish,
            spans=spans,
        )

    def _is_held_abort(self, reason: Mapping[str, Any]) -> bool:
        return self._config.sglang.pause_mode == "abort" and not reason.get("status_code")

    async def _held(self) -> None:
        if self._weights is not None:
            await self._weights.going.wait()

    async def _abort(self, rid: str) -> None:
        try:
            await self._api.control("abort_request", {"rid": rid})
        except SglangError as error:
            log.info("an abandoned answer could not be aborted: %s", error)

    async def sample(self, request: GenerateRequest, times: int) -> list[TokenIds | Exception]:
        """One call: SGLang computes the prompt once for all of them."""
        self._validate(request)
        body = self._body(request, [])
        body["sampling_params"] = {**body["sampling_params"], "n": times}
        async with self.slots.reserve(1, within_s=request.place_within_s):
            try:
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

    def _body(self, request: GenerateRequest, said: Sequence[int]) -> dict[str, Any]:
        return {
            "input_ids": [*request.prompt_ids.tolist(), *said],
            "sampling_params": sampling_body(request.sampling, self._end_ids, said=len(said)),
        }

    # -- scoring ------------------------------------------------------------------------------------

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        check_scored(requests, self._config.context_length)
        waiting = {index: first_candidates(request, self._vocabulary) for index, request in enumerate(requests)}
        results: dict[int, Scores] = {}
        while waiting:
            for index, candidates in waiting.items():
                self._check_size(requests[index], candidates)
            for index, found in (await self._scored(requests, waiting)).items():
                if found is not None:
                    results[index] = found
            # Too few candidates for the temperature: ask for more.
            waiting = {i: min(8 * k, self._vocabulary) for i, k in waiting.items() if i not in results}
        return [results[index] for index in range(len(requests))]

    async def _scored(self, requests: Sequence[ScoreRequest], asked: Mapping[int, int]) -> dict[int, Scores | None]:
        chosen = [requests[index] for index in asked]
        try:
            replies = await self._api.generate(score_body(chosen, list(asked.values())))
            return {
                index: read_scores(request, candidates, reply, self._vocabulary)
                for (index, candidates), request, reply in zip(asked.items(), chosen, replies, strict=True)
            }
        except Refusal as refusal:
            raise UnsupportedRequest(str(refusal)) from None
        except (SglangError, WrongReply, KeyError, ValueError) as error:
            raise EngineError(f"SGLang's log-probs cannot be used: {error}") from error

    def _check_size(self, request: ScoreRequest, candidates: int) -> None:
        entries = candidates * (len(request.ids) - request.start)
        if entries > MOST_ENTRIES:
            raise UnsupportedRequest(
                f"log-probs of {len(request.ids) - request.start} tokens at temperature {request.temperature} would "
                f"take {candidates} candidates each; use a temperature of 1 or less, or the transformers engine",
                param="temperature",
            )

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

    def _swaps(self) -> SglangWeights:
        if self._weights is None:
            raise EngineError("this engine was not started to take new weights")
        return self._weights

    # -- loading ------------------------------------------------------------------------------------

    def _load_settings(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(self._folder)
        model = AutoConfig.from_pretrained(self._folder)
        text = model.get_text_config()
        limit = getattr(text, "max_position_embeddings", None)
        if limit is not None and limit < self._config.context_length:
            raise EngineError(
                f"engine.context_length is {self._config.context_length}, but the model knows only {limit} positions"
            )
        self._vocabulary = int(text.vocab_size)
        try:
            generation = GenerationConfig.from_pretrained(self._folder)
        except OSError:
            generation = GenerationConfig()
        self._end_ids = end_ids(text.eos_token_id, generation.eos_token_id, self._tokenizer.eos_token_id)


def sampling_body(sampling: SamplingParams, end: Sequence[int], *, said: int = 0) -> dict[str, Any]:
    """SGLang's sampling parameters, one for each of ours; ``said`` tokens of the answer are written already."""
    body: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "max_new_tokens": sampling.max_tokens - said,
        "stop": list(sampling.stop),
        "stop_token_ids": list(end),
        "skip_special_tokens": False,
    }
    if sampling.json_schema:
        body["json_schema"] = sampling.json_schema
    return body


def _spans(meta: Mapping[str, Any], base: int) -> list[VersionSpan]:
    """What SGLang says of one submission, whose first token is number ``base`` of the response."""
    spans = meta.get("weight_versions")
    if spans is None:
        spans = [{"version": version_of(meta), "start": 0, "end": int(meta["completion_tokens"])}]
    return [
        VersionSpan(start=base + int(s["start"]), end=base + int(s["end"]), version=int(s["version"]))
        for s in spans
        if int(s["end"]) > int(s["start"])
    ]


def _joined(spans: Sequence[VersionSpan], length: int) -> tuple[VersionSpan, ...]:
    """Neighbours of one version as one; together they must cover the response."""
    joined: list[VersionSpan] = []
    for span in spans:
        if joined and joined[-1].version == span.version and joined[-1].end == span.start:
            span = VersionSpan(start=joined.pop().start, end=span.end, version=span.version)
        joined.append(span)
    covered = joined[-1].end if joined else 0
    if covered != length:
        raise WrongReply(f"version spans cover {covered} of {length} tokens")
    return tuple(joined)


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


_tasks: set[asyncio.Task[None]] = set()


def _spawn(work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
