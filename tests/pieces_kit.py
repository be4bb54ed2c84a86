"""Pieces of an answer as a replica would give them, for the writers of every dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from clawrl.messages import FinishReason, Message, VersionSpan
from clawrl.serving.pieces import FinishPiece, Piece, Usage

SPANS = (VersionSpan(start=0, end=2, version=3), VersionSpan(start=2, end=4, version=4))
PLAIN = Message(role="assistant", content="ab")


def ending(message: Message, reason: FinishReason = FinishReason.STOP) -> FinishPiece:
    usage = Usage(prompt_tokens=7, completion_tokens=4)
    return FinishPiece(finish_reason=reason, spans=SPANS, version=4, usage=usage, message=message)


class Source:
    """Pieces in order, then an error or a silent end; remembers that it was closed."""

    def __init__(self, *pieces: Piece, error: Exception | None = None) -> None:
        self.given, self.error, self.closed = pieces, error, False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        self.closed = False
        try:
            for piece in self.given:
                yield piece
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True
