"""An answer whose adapters change under way: cut where they do, and asked for anew as prompt + what was said.

Its prefix is computed again under the new version, so that each token has the log-prob which a cold engine with its
version would give it; every chunk is of one version. Stop strings are watched here, where they may reach over a cut. A
grammar cannot go on in the middle: such answers end under the version that they began with (they are not trained on).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import replace

import numpy as np

from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.engine.sglang_adapters import SglangAdapters
from clawrl.engine.textstream import Detokenizer, TextStream
from clawrl.messages import FinishReason

Submit = Callable[[GenerateRequest, str | None], AsyncGenerator[TokenChunk, None]]
"""Streams the answer to a request by the adapters of this name; closing it aborts the request."""


async def moving(
    request: GenerateRequest, adapters: SglangAdapters, submit: Submit, tokenizer: Detokenizer, ends: Collection[int]
) -> AsyncGenerator[TokenChunk, None]:
    sampling = request.sampling
    stops = TextStream(tokenizer, sampling.stop) if sampling.stop else None
    said: list[int] = []
    while (reason := _over(said, sampling.max_tokens, ends)) is None:
        with adapters.using() as serving:
            asked = replace(
                request,
                prompt_ids=np.concatenate([request.prompt_ids, np.asarray(said, dtype=np.int32)]),
                sampling=replace(sampling, stop=(), max_tokens=sampling.max_tokens - len(said)),
            )
            moved = asyncio.Event() if sampling.json_schema else serving.moved
            async with (
                aclosing(submit(asked, serving.name)) as chunks,
                aclosing(_until(moved, chunks)) as before,
            ):
                async for chunk in before:
                    chunk = _up_to_stop(chunk, stops)
                    said += chunk.ids.tolist()
                    yield replace(chunk, version=serving.version, spans=None)
                    if chunk.finish_reason is not None:
                        return
    # Its last token came, but word that it was the last one did not.
    none = np.empty(0)
    yield TokenChunk(
        ids=none.astype(np.int32), logps=none.astype(np.float32), version=adapters.serving.version, finish_reason=reason
    )


def _over(said: list[int], max_tokens: int, ends: Collection[int]) -> FinishReason | None:
    if said and said[-1] in ends:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(said) >= max_tokens else None


def _up_to_stop(chunk: TokenChunk, stops: TextStream | None) -> TokenChunk:
    for position, token in enumerate(chunk.ids.tolist() if stops else ()):
        assert stops is not None
        stops.push([token])
        if stops.stopped:
            end = position + 1
            return replace(chunk, ids=chunk.ids[:end], logps=chunk.logps[:end], finish_reason=FinishReason.STOP)
    return chunk


async def _until(moved: asyncio.Event, chunks: AsyncGenerator[TokenChunk, None]) -> AsyncGenerator[TokenChunk, None]:
    """What comes before the move."""
    over = asyncio.ensure_future(moved.wait())
    coming: asyncio.Future[TokenChunk | None] | None = None
    try:
        while not over.done():
            coming = asyncio.ensure_future(_next(chunks))
            await asyncio.wait({coming, over}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() or (chunk := coming.result()) is None:
                return
            yield chunk
    finally:
        over.cancel()
        if coming is not None and not coming.done():
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming


async def _next(chunks: AsyncGenerator[TokenChunk, None]) -> TokenChunk | None:
    return await anext(chunks, None)
