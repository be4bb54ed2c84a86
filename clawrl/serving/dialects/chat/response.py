"""The answer in OpenAI's shape: one object, or the chunks of a stream.

Order of a stream: a delta with the role, deltas of reasoning, text and tool calls, a finish chunk with an empty delta,
the usage chunk with ``choices: []`` if the client asked for it (otherwise usage rides on the finish chunk), ``[DONE]``.
Of several answers each has its own role delta and finish chunk, under its ``index``. A tool call's first delta has its
id, type and name, all of them its index. ``finish_reason`` is ``stop``, ``length`` or ``tool_calls``, nothing else: a
turn that was aborted or failed has no finish chunk. The policy version is in ``system_fingerprint`` (``v12``); ours
beyond the standard is in one block, ``clawrl``, that other clients ignore.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from clawrl.messages import FinishReason, Message, VersionSpan
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.errors import ApiError
from clawrl.serving.openai_message import openai_call
from clawrl.serving.pieces import (
    CallPiece,
    FinishPiece,
    IdlePiece,
    Piece,
    ReasoningPiece,
    Started,
    TextPiece,
    TokenLogprob,
    Usage,
    WholeAnswer,
)
from clawrl.serving.sse import ending_in_error, sse

DONE = b"data: [DONE]\n\n"
Json = dict[str, Any]


class ChatWriter:
    """Builds every object of one response, which all share id, time and model."""

    def __init__(self, facts: AnswerFacts, *, include_usage: bool, logprobs: bool) -> None:
        self._facts = facts
        self._include_usage = include_usage
        self._logprobs = logprobs

    def whole(self, answers: Sequence[WholeAnswer]) -> Json:
        choices = [
            {
                "index": index,
                "message": message_json(answer.finish.message),
                "logprobs": _logprobs(answer.logprobs) if self._logprobs else None,
                "finish_reason": _wire_reason(answer.finish),
            }
            for index, answer in enumerate(answers)
        ]
        finishes = [answer.finish for answer in answers]
        envelope = self._envelope("chat.completion", choices, 0, max(f.version for f in finishes), finishes[0].spans)
        return envelope | {"usage": _usage(_total(finishes))}

    def stream(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        return ending_in_error(self._events(pieces), lambda error: sse(error_body(error)))

    async def _events(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        begun: set[int] = set()
        finishes: list[FinishPiece] = []
        async with aclosing(pieces.all()) as numbered:
            async for index, piece in numbered:
                if index not in begun:
                    begun.add(index)
                    yield sse(self._chunk(index, {"role": "assistant", "content": ""}, piece.version))
                if isinstance(piece, FinishPiece):
                    finishes.append(piece)
                    last = len(finishes) == len(self._facts.turn_ids)
                    yield sse(self._finish(index, piece, finishes if last and not self._include_usage else None))
                else:
                    for chunk in self._deltas(index, piece):
                        yield sse(chunk)
        if self._include_usage:
            version = max(piece.version for piece in finishes)
            usage = {"usage": _usage(_total(finishes))}
            yield sse(self._envelope("chat.completion.chunk", [], 0, version) | usage)
        yield DONE

    def _deltas(self, index: int, piece: Piece) -> Iterator[Json]:
        match piece:
            case TextPiece():
                chunk = self._chunk(index, {"content": piece.text} if piece.text else {}, piece.version)
                if piece.logprobs is not None and self._logprobs:
                    chunk["choices"][0]["logprobs"] = _logprobs(piece.logprobs)
                yield chunk
            case ReasoningPiece():
                yield self._chunk(index, {"reasoning_content": piece.text}, piece.version)
            case CallPiece():
                call: Json = {"index": piece.index}
                if piece.id is not None:
                    call |= {"id": piece.id, "type": "function"}
                function = {} if piece.name is None else {"name": piece.name}
                call["function"] = function | {"arguments": piece.arguments}
                yield self._chunk(index, {"tool_calls": [call]}, piece.version)
            case IdlePiece():
                # A comment line would be no sign of life to clients; an empty delta is.
                yield self._chunk(index, {}, piece.version)

    def _finish(self, index: int, piece: FinishPiece, finishes: Sequence[FinishPiece] | None) -> Json:
        """``finishes`` are given when no usage chunk follows."""
        choice = {"index": index, "delta": {}, "finish_reason": _wire_reason(piece)}
        chunk = self._envelope("chat.completion.chunk", [choice], index, piece.version, piece.spans)
        return chunk if finishes is None else chunk | {"usage": _usage(_total(finishes))}

    def _chunk(self, index: int, delta: Json, version: int | None) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": None}
        return self._envelope("chat.completion.chunk", [choice], index, version)

    def _envelope(
        self,
        kind: str,
        choices: list[Json],
        index: int,
        version: int | None,
        spans: Sequence[VersionSpan] | None = None,
    ) -> Json:
        facts = self._facts
        ours = facts.ours(index, version, spans)
        if kind == "chat.completion" and len(facts.turn_ids) > 1:
            ours["turn_ids"] = list(facts.turn_ids)
        return {
            "id": f"chatcmpl-{facts.turn_ids[0]}",
            "object": kind,
            "created": facts.created,
            "model": facts.model,
            "system_fingerprint": None if version is None else f"v{version}",
            "choices": choices,
            "clawrl": ours,
        }


def error_body(error: ApiError) -> Json:
    return error.body()


def message_json(message: Message) -> Json:
    """No null but the content of an answer that is tool calls only, as OpenAI has it."""
    calls = [openai_call(call) for call in message.tool_calls]
    said: Json = {"role": "assistant", "content": message.content or (None if calls else "")}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if calls:
        said["tool_calls"] = calls
    return said


def _wire_reason(piece: FinishPiece) -> str:
    if piece.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise ValueError(f"a turn that ended as {piece.finish_reason.value!r} is never shown as a finished answer")
    if piece.message.tool_calls and piece.finish_reason is FinishReason.STOP:
        return "tool_calls"
    return piece.finish_reason.value


def _total(finishes: Sequence[FinishPiece]) -> Usage:
    """The prompt of several answers is one and is counted once."""
    return Usage(
        prompt_tokens=finishes[0].usage.prompt_tokens,
        completion_tokens=sum(piece.usage.completion_tokens for piece in finishes),
    )


def _usage(usage: Usage) -> Json:
    # No reasoning tokens beside them: some clients add those on top.
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _logprobs(entries: Sequence[TokenLogprob]) -> Json:
    return {"content": [entry.as_json() for entry in entries], "refusal": None}
