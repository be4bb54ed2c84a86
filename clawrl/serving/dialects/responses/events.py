"""The stream events of output items, from the pieces of one answer.

An item is added, gets its text as deltas, and is done; reasoning and a message get their one content part in between.
One item is open at a time: a piece of another kind, or the first piece of another call, closes it. A piece without text
opens nothing. Text that comes after a call is a message item of its own. Sequence numbers are not given here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clawrl.messages import TurnId
from clawrl.serving.dialects.responses.output import Json, Kind, OutputItem, Status
from clawrl.serving.dialects.responses.tools import ToolName
from clawrl.serving.pieces import CallPiece, Delta, ReasoningPiece, TextPiece

_TEXT_EVENTS: Mapping[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class ItemEvents:
    """``done`` are the items so far, without the one that is open."""

    def __init__(self, turn_id: TurnId, names: Mapping[str, ToolName]) -> None:
        self.done: list[Json] = []
        self._turn_id = turn_id
        self._names = names
        self._open: OutputItem | None = None
        self._said: list[str] = []

    def of(self, piece: Delta) -> Iterator[Json]:
        match piece:
            case ReasoningPiece(text=text) if text:
                yield from self._say("reasoning", text)
            case TextPiece(text=text) if text:
                yield from self._say("message", text)
            case CallPiece():
                if piece.id is not None:
                    yield from self.close()
                    yield from self._add(self._next("function_call", piece.id, piece.name or ""))
                if piece.arguments:
                    yield from self._say("function_call", piece.arguments)

    def end(self, status: Status) -> Iterator[Json]:
        """The answer is over. One without any item gets an empty message, so that clients find something to read."""
        if self._open is None and not self.done:
            yield from self._add(self._next("message"))
        yield from self.close(status)

    def close(self, status: Status = "completed") -> Iterator[Json]:
        item, text = self._open, "".join(self._said)
        if item is None:
            return
        place = self._place(item)
        event = _TEXT_EVENTS[item.kind] + ".done"
        if item.kind == "function_call":
            yield {"type": event, **place, "name": item.name.name, "arguments": text}
        else:
            logprobs: Json = {"logprobs": []} if item.kind == "message" else {}
            yield {"type": event, **place, "text": text, **logprobs}
            yield {"type": "response.content_part.done", **place, "part": item.part(text)}
        self._open, self._said = None, []
        self.done.append(item.as_json(text, status))
        yield {"type": "response.output_item.done", "output_index": item.index, "item": self.done[-1]}

    def _say(self, kind: Kind, text: str) -> Iterator[Json]:
        item = self._open
        if item is None or item.kind != kind:
            yield from self.close()
            item = self._next(kind)
            yield from self._add(item)
        self._said.append(text)
        logprobs: Json = {"logprobs": []} if kind == "message" else {}
        yield {"type": _TEXT_EVENTS[kind] + ".delta", **self._place(item), "delta": text, **logprobs}

    def _next(self, kind: Kind, call_id: str = "", name: str = "") -> OutputItem:
        called = self._names.get(name, ToolName(name=name))
        return OutputItem(turn_id=self._turn_id, index=len(self.done), kind=kind, call_id=call_id, name=called)

    def _add(self, item: OutputItem) -> Iterator[Json]:
        self._open = item
        yield {
            "type": "response.output_item.added",
            "output_index": item.index,
            "item": item.as_json("", "in_progress"),
        }
        if item.kind != "function_call":
            yield {"type": "response.content_part.added", **self._place(item), "part": item.part("")}

    def _place(self, item: OutputItem) -> Json:
        place: Json = {"item_id": item.id, "output_index": item.index}
        return place if item.kind == "function_call" else place | {"content_index": 0}
