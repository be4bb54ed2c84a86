"""The one stream of pieces that every answer leaves a replica as, whatever the dialect of the client.

Order: pieces of reasoning, text and tool calls as they become final, then one `FinishPiece`. A tool call begins with a
piece that has its id and name and no arguments; pieces of its arguments follow before anything else comes, and joined
they are the JSON text that the model wrote. `IdlePiece` may come anywhere before the end. A dialect only translates;
nothing is parsed after this point.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from clawrl.messages import FinishReason, Message, VersionSpan
from clawrl.serving.errors import internal

_LOWEST_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One sampled token: its text by itself (possibly a fragment of a character) and its log-prob."""

    token: str
    logprob: float

    def as_json(self) -> dict[str, Any]:
        whole = "\ufffd" not in self.token
        finite = max(self.logprob, _LOWEST_LOGPROB) if not math.isnan(self.logprob) else _LOWEST_LOGPROB
        return {
            "token": self.token,
            "logprob": finite,
            "bytes": list(self.token.encode()) if whole else None,
            "top_logprobs": [],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Text that is final, from policy ``version``.

    ``logprobs`` are of the tokens sampled since the last piece that had any, whatever became of their text.
    """

    text: str
    version: int
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningPiece:
    text: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """Part of the ``index``-th tool call. ``id`` and ``name`` are in its first piece only."""

    index: int
    version: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishPiece:
    """``message`` is the whole answer as the client will replay it."""

    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    version: int
    usage: Usage
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePiece:
    """Nothing yet: a sign of life for a client that would give up on a silent connection.

    ``version`` is that of the last piece, None before the first.
    """

    version: int | None


Delta = TextPiece | ReasoningPiece | CallPiece
Piece = Delta | IdlePiece | FinishPiece


async def alive(pieces: AsyncGenerator[Piece, None], every_s: float) -> AsyncGenerator[Piece, None]:
    """The same pieces, with an `IdlePiece` whenever none has come for ``every_s``. Ends with a `FinishPiece` or raises.

    Closing it closes the source.
    """
    version: int | None = None
    async with aclosing(pieces):
        while True:
            coming = asyncio.ensure_future(anext(pieces))
            try:
                while not (await asyncio.wait([coming], timeout=every_s))[0]:
                    yield IdlePiece(version=version)
                piece = coming.result()
            except StopAsyncIteration:
                raise internal("The engine ended the answer without a finish reason.") from None
            finally:
                # A generator cannot be closed while its next item is being waited for. Where an error came instead and
                # nobody is left to see it, this also keeps it from being reported as forgotten.
                if coming.cancel():
                    await asyncio.wait([coming])
            version = piece.version
            yield piece
            if isinstance(piece, FinishPiece):
                return


async def merged(sources: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The pieces of several answers as they come, each with the number of its answer. Closing it closes them all."""
    waiting: dict[asyncio.Future[Piece], int] = {}
    try:
        for number, source in enumerate(sources):
            waiting[asyncio.ensure_future(anext(source))] = number
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # In the order of the answers, so that equal runs look alike.
            for future in sorted(done, key=waiting.__getitem__):
                number, piece = waiting.pop(future), future.result()
                yield number, piece
                if not isinstance(piece, FinishPiece):
                    waiting[asyncio.ensure_future(anext(sources[number]))] = number
    finally:
        for future in waiting:
            future.cancel()
        if waiting:
            await asyncio.wait(waiting)
        for source in sources:
            await source.aclose()


@dataclass(frozen=True, slots=True)
class Started:
    """Pieces whose first one is already here, so that a refusal before it could still be an HTTP status."""

    first: tuple[int, Piece]
    rest: AsyncGenerator[tuple[int, Piece], None]

    async def all(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Every piece in order, with the number of its answer. Closing it closes the sources."""
        async with aclosing(self.rest):
            yield self.first
            async for numbered in self.rest:
                yield numbered


async def started(pieces: AsyncGenerator[tuple[int, Piece], None]) -> Started:
    """Wait for the first piece; raises whatever the source raises instead of it."""
    try:
        return Started(await anext(pieces), pieces)
    except StopAsyncIteration:
        raise internal("The engine ended the answer before it began.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAnswer:
    finish: FinishPiece
    logprobs: tuple[TokenLogprob, ...]


async def whole_answers(pieces: Started, count: int) -> list[WholeAnswer]:
    """All answers, for a client that does not stream."""
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(count)]
    finished: dict[int, FinishPiece] = {}
    async with aclosing(pieces.all()) as numbered:
        async for number, piece in numbered:
            if isinstance(piece, FinishPiece):
                finished[number] = piece
            elif isinstance(piece, TextPiece):
                logprobs[number] += piece.logprobs or ()
    return [WholeAnswer(finish=finished[i], logprobs=tuple(logprobs[i])) for i in range(count)]
