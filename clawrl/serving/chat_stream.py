"""Pieces of an answer to the bytes of an event stream.

In: an async iterator of `TextPiece` and, last, one `FinishPiece`. Out: server-sent events in the order that
``chat_response`` names. A failure after the first byte becomes an error event and is then raised, so that the HTTP
server breaks the connection without a terminating chunk: an answer that was cut never looks complete. Closing the
output closes the input, which frees the engine's slot.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from clawrl.messages import FinishReason, VersionSpan
from clawrl.serving.chat_response import DONE, ChatReply, TokenLogprob, Usage, sse, sse_error
from clawrl.serving.errors import ApiError, internal


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Text that is final, from policy ``version``. Empty text without log-probs is a sign of life."""

    text: str
    version: int
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishPiece:
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    version: int
    usage: Usage


Piece = TextPiece | FinishPiece


@dataclass(frozen=True, slots=True)
class Started:
    """Pieces whose first one is already here, so that a refusal before it could still be an HTTP status."""

    first: Piece
    rest: AsyncGenerator[Piece, None]

    async def all(self) -> AsyncIterator[Piece]:
        """Every piece in order; raises if the source ends without a `FinishPiece`."""
        piece = self.first
        yield piece
        async for piece in self.rest:
            yield piece
        if not isinstance(piece, FinishPiece):
            raise internal("The engine ended the answer without a finish reason.")


async def started(pieces: AsyncGenerator[Piece, None]) -> Started:
    """Wait for the first piece; raises whatever the source raises instead of it."""
    try:
        return Started(await anext(pieces), pieces)
    except StopAsyncIteration:
        raise internal("The engine ended the answer before it began.") from None


async def event_stream(reply: ChatReply, pieces: Started, *, include_usage: bool) -> AsyncIterator[bytes]:
    try:
        async with aclosing(pieces.rest):
            yield sse(reply.role_chunk(pieces.first.version))
            async for piece in pieces.all():
                for event in _events(reply, piece, include_usage):
                    yield event
    except Exception as error:
        # What went wrong inside is for the log, which sees the exception; the client gets no internals.
        yield sse_error(error if isinstance(error, ApiError) else internal())
        raise
    yield DONE


async def whole_answer(reply: ChatReply, pieces: AsyncGenerator[Piece, None], *, logprobs: bool) -> dict[str, Any]:
    """The same pieces as one object, for a client that does not stream."""
    text: list[str] = []
    entries: list[TokenLogprob] = []
    async with aclosing(pieces):
        async for piece in (await started(pieces)).all():
            if isinstance(piece, FinishPiece):
                end = piece
            else:
                text.append(piece.text)
                entries += piece.logprobs or ()
    given = entries if logprobs else None
    return reply.completion("".join(text), end.finish_reason, end.spans, end.version, end.usage, given)


def _events(reply: ChatReply, piece: Piece, include_usage: bool) -> Sequence[bytes]:
    if isinstance(piece, TextPiece):
        if not piece.text and piece.logprobs is None:
            return (sse(reply.idle_chunk(piece.version)),)
        return (sse(reply.text_chunk(piece.text, piece.version, piece.logprobs)),)
    finish = reply.finish_chunk(piece.finish_reason, piece.spans, piece.version, None if include_usage else piece.usage)
    return (sse(finish), sse(reply.usage_chunk(piece.usage, piece.version))) if include_usage else (sse(finish),)
