"""A response in one piece, or as a stream of events with a ``sequence_number`` each.

Order of a stream: ``response.created`` and ``response.in_progress``, the events of the items (reasoning, text, function
calls, as they come), and ``response.completed`` or ``response.incomplete`` with the whole Response object and its
usage. A silent stretch is bridged by more ``response.in_progress``. A failure is ``response.failed`` with the items
that were done, after which the connection breaks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from clawrl.serving.dialects.responses.events import ItemEvents
from clawrl.serving.dialects.responses.output import Json, output_items
from clawrl.serving.dialects.responses.response import ResponseShape, ended
from clawrl.serving.errors import ApiError
from clawrl.serving.pieces import FinishPiece, IdlePiece, Piece, Started, WholeAnswer
from clawrl.serving.sse import ending_in_error, sse


class ResponsesWriter:
    """There is one answer: this dialect cannot ask for more."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape

    def whole(self, answers: Sequence[WholeAnswer]) -> Json:
        finish, turn_id = answers[0].finish, self._shape.facts.turn_ids[0]
        items = output_items(finish.message, turn_id, self._shape.names, ended(finish))
        return self._shape.finished(finish, items)

    def stream(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        run = _Run(self._shape)
        return ending_in_error(run.events(pieces), run.failed)


class _Run:
    """One stream: what was said so far, and by which version."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape
        self._items = ItemEvents(shape.facts.turn_ids[0], shape.names)
        self._version: int | None = None
        self._numbers = count()

    async def events(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        begun = False
        async with aclosing(pieces.all()) as numbered:
            async for _, piece in numbered:
                self._version = piece.version
                if not begun:
                    begun = True
                    yield self._event({"type": "response.created", "response": self._so_far()})
                    yield self._event({"type": "response.in_progress", "response": self._so_far()})
                for event in self._of(piece):
                    yield self._event(event)

    def failed(self, error: ApiError) -> bytes:
        response = self._shape.failed(error, self._version, self._items.done)
        return self._event({"type": "response.failed", "response": response})

    def _of(self, piece: Piece) -> Iterator[Json]:
        match piece:
            case FinishPiece():
                status = ended(piece)
                yield from self._items.end(status)
                yield {"type": f"response.{status}", "response": self._shape.finished(piece, self._items.done)}
            case IdlePiece():
                yield {"type": "response.in_progress", "response": self._so_far()}
            case _:
                yield from self._items.of(piece)

    def _so_far(self) -> Json:
        return self._shape.response("in_progress", self._version, self._items.done)

    def _event(self, event: dict[str, Any]) -> bytes:
        return sse(event | {"sequence_number": next(self._numbers)}, name=event["type"])
