"""The items of an answer: reasoning, a message, function calls, each with an id that follows from its place.

An item has its parts once it is complete or was cut off; while it is in progress it is empty, and its text comes as
deltas. Of a call the client needs the ``call_id``, which is the piece's, and the name in two fields if it has a
namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clawrl.messages import Message, TurnId
from clawrl.serving.dialects.responses.tools import ToolName

Json = dict[str, Any]
Kind = Literal["reasoning", "message", "function_call"]
Status = Literal["in_progress", "completed", "incomplete"]
_NO_TOOL = ToolName(name="")
_PREFIX: Mapping[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputItem:
    """The ``index``-th item of the answer to ``turn_id``; ``call_id`` and ``name`` are a function call's."""

    turn_id: TurnId
    index: int
    kind: Kind
    call_id: str = ""
    name: ToolName = _NO_TOOL

    @property
    def id(self) -> str:
        return f"{_PREFIX[self.kind]}_{self.turn_id}_{self.index}"

    def part(self, text: str) -> Json:
        """``text`` as the one content part of reasoning or of a message."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": []}

    def as_json(self, text: str, status: Status) -> Json:
        """``text`` is what was thought or said, or the arguments of the call."""
        item: Json = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            item |= {"call_id": self.call_id, "name": self.name.name, "arguments": text}
            return item if self.name.namespace is None else item | {"namespace": self.name.namespace}
        shown = status != "in_progress"
        item["content"] = [self.part(text)] if shown else []
        if self.kind == "message":
            return item | {"role": "assistant"}
        # Clients show one or the other; a summary is all that OpenAI itself lets them see.
        return item | {"summary": [{"type": "summary_text", "text": text}] if shown else []}


def output_items(message: Message, turn_id: TurnId, names: Mapping[str, ToolName], last: Status) -> list[Json]:
    """All items of a finished answer, the last one with status ``last``. An empty answer is one empty message."""
    said: list[tuple[OutputItem, str]] = []

    def add(kind: Kind, text: str, call_id: str = "", name: str = "") -> None:
        called = names.get(name, ToolName(name=name))
        said.append((OutputItem(turn_id=turn_id, index=len(said), kind=kind, call_id=call_id, name=called), text))

    if message.reasoning:
        add("reasoning", message.reasoning)
    if message.content or not (message.reasoning or message.tool_calls):
        add("message", message.content)
    for call in message.tool_calls:
        add("function_call", call.arguments, call.id, call.name)
    return [item.as_json(text, "completed") for item, text in said[:-1]] + [said[-1][0].as_json(said[-1][1], last)]
