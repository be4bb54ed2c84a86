"""The content of an answer as blocks: all at once from its message, or as stream events from its pieces.

One block is open at a time: a piece of another kind, or the first piece of another tool call, closes it. A block of
reasoning ends with a signature, which clients wait for; there is nothing to sign, so it is `SIGNATURE`. No block is
opened for a piece without text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from clawrl.messages import Message
from clawrl.serving.pieces import CallPiece, Delta, ReasoningPiece, TextPiece

Json = dict[str, Any]
SIGNATURE = "clawrl"


def content_blocks(message: Message) -> list[Json]:
    """Reasoning, text, tool calls: what is empty has no block."""
    blocks: list[Json] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": SIGNATURE})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
        for call in message.tool_calls
    ]


class BlockEvents:
    """Turns one answer's pieces into its block events. Remembers only which block is open."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def of(self, piece: Delta) -> Iterator[Json]:
        match piece:
            case ReasoningPiece(text=text) if text:
                yield from self._enter({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case TextPiece(text=text) if text:
                yield from self._enter({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case CallPiece():
                yield from self._call(piece)

    def close(self) -> Iterator[Json]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _call(self, piece: CallPiece) -> Iterator[Json]:
        if piece.id is not None:
            yield from self.close()
            yield from self._enter({"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
        if piece.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": piece.arguments})

    def _enter(self, block: Json) -> Iterator[Json]:
        if self._open == block["type"]:
            return
        yield from self.close()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _input(arguments: str) -> Json:
    value = json.loads(arguments or "{}")
    if not isinstance(value, dict):
        raise ValueError("the arguments of a tool call are no JSON object")
    return value
