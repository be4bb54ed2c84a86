"""The answer in Anthropic's shape: one message object, or the events of a stream.

Order of a stream: ``message_start`` and a ``ping``, then for each block of reasoning, text or tool use its
``content_block_start``, deltas and ``content_block_stop``, then ``message_delta`` with the reason and the usage, and
``message_stop``. A silent stretch is bridged by more pings. The usage is known at the end only: ``message_start`` says
0, and ``message_delta`` says the true ``input_tokens`` and ``output_tokens``, which clients take over. A failure is an
``error`` event and no ``message_stop``.

``stop_reason`` is ``end_turn``, ``max_tokens`` or ``tool_use``, nothing else: which stop sequence ended an answer is
not known, so that one is ``end_turn`` too. Ours beyond the standard is in one block, ``clawrl``, on the message object
and on ``message_delta``; other clients ignore it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from clawrl.messages import FinishReason, VersionSpan
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.messages.blocks import BlockEvents, content_blocks
from clawrl.serving.dialects.messages.errors import error_body
from clawrl.serving.pieces import FinishPiece, IdlePiece, Started, Usage, WholeAnswer
from clawrl.serving.sse import ending_in_error, sse

Json = dict[str, Any]
PING: Json = {"type": "ping"}


class MessagesWriter:
    """Builds every object of one response. There is one answer: this dialect cannot ask for more."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts

    def whole(self, answers: Sequence[WholeAnswer]) -> Json:
        finish = answers[0].finish
        reason, content = _stop_reason(finish), content_blocks(finish.message)
        return self._message(content, finish.version, finish.usage, reason, finish.spans)

    def stream(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        return ending_in_error(self._events(pieces), lambda error: _event(error_body(error)))

    async def _events(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        blocks = BlockEvents()
        begun = False
        async with aclosing(pieces.all()) as numbered:
            async for _, piece in numbered:
                if not begun:
                    begun = True
                    yield _event(self._start(piece.version))
                    yield _event(PING)
                match piece:
                    case FinishPiece():
                        events = self._end(piece, blocks)
                    case IdlePiece():
                        events = iter([PING])
                    case _:
                        events = blocks.of(piece)
                for event in events:
                    yield _event(event)

    def _start(self, version: int | None) -> Json:
        nothing = Usage(prompt_tokens=0, completion_tokens=0)
        return {"type": "message_start", "message": self._message([], version, nothing)}

    def _end(self, piece: FinishPiece, blocks: BlockEvents) -> Iterator[Json]:
        reason = _stop_reason(piece)
        yield from blocks.close()
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": _usage(piece.usage),
            "clawrl": self._facts.ours(0, piece.version, piece.spans),
        }
        yield {"type": "message_stop"}

    def _message(
        self,
        content: list[Json],
        version: int | None,
        usage: Usage,
        reason: str | None = None,
        spans: Sequence[VersionSpan] | None = None,
    ) -> Json:
        return {
            "id": f"msg_{self._facts.turn_ids[0]}",
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": _usage(usage),
            "clawrl": self._facts.ours(0, version, spans),
        }


def _event(event: Json) -> bytes:
    return sse(event, event["type"])


def _stop_reason(piece: FinishPiece) -> str:
    if piece.finish_reason is FinishReason.LENGTH:
        return "max_tokens"
    if piece.finish_reason is not FinishReason.STOP:
        raise ValueError(f"a turn that ended as {piece.finish_reason.value!r} is never shown as a finished answer")
    return "tool_use" if piece.message.tool_calls else "end_turn"


def _usage(usage: Usage) -> Json:
    # The zeros because clients add them to the input.
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
