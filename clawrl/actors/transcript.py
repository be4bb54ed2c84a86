"""The turn being written while its tokens leave: pieces for the client, exact ids for the ledger."""

from __future__ import annotations

import time

import numpy as np
from transformers import PreTrainedTokenizerBase

from clawrl.actors.generation import GenerationTask
from clawrl.engine.protocol import TokenChunk
from clawrl.engine.textstream import TextStream
from clawrl.messages import FinishReason, Message, Turn, VersionSpan
from clawrl.serving.parsing.formats import AnswerFormat, visible_ids
from clawrl.serving.parsing.parts import Call, Part, Reasoning
from clawrl.serving.parsing.reader import AnswerReader
from clawrl.serving.pieces import CallPiece, Delta, FinishPiece, ReasoningPiece, TextPiece, TokenLogprob, Usage
from clawrl.serving.prompts import Prompt
from clawrl.serving.sessions import answer_hash, reply_hash

# Enough for whatever a template, or a forced call, writes of the answer itself.
_TAIL_IDS = 256


class Transcript:
    """Feed it chunks in order; it never changes an id or a log-prob."""

    def __init__(
        self,
        task: GenerationTask,
        prompt: Prompt,
        tokenizer: PreTrainedTokenizerBase,
        answer_format: AnswerFormat,
        *,
        replica: str,
        version: int,
    ) -> None:
        self._task = task
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._replica = replica
        self._text = TextStream(tokenizer, task.sampling.stop, keep=visible_ids(answer_format, tokenizer))
        self._reader = AnswerReader(
            answer_format,
            prompt_tail=str(tokenizer.decode(prompt.ids[-_TAIL_IDS:].tolist(), clean_up_tokenization_spaces=False)),
            tools=task.arrival.inputs.tools,
            streamed=task.streamed,
        )
        self._written: list[str] = []
        self._chunks: list[TokenChunk] = []
        self._logprobs: list[TokenLogprob] = []
        self._started_at = time.time()
        self.version = version

    @property
    def is_empty(self) -> bool:
        return not self._chunks

    def add(self, chunk: TokenChunk) -> list[Delta]:
        """What became final with this chunk; nothing while a character, a mark or a stop string is undecided.

        Raises `MalformedCall`.
        """
        self._chunks.append(chunk)
        self.version = chunk.version
        if self._task.logprobs:
            pairs = zip(chunk.ids.tolist(), chunk.logps.tolist(), strict=True)
            self._logprobs += [TokenLogprob(token=str(self._tokenizer.decode([i])), logprob=p) for i, p in pairs]
        text = self._text.push(chunk.ids.tolist())
        if chunk.finish_reason is not None:
            text += self._text.finish()
        self._written.append(text)
        parts = self._reader.feed(text)
        if chunk.finish_reason is not None:
            parts += self._reader.finish(truncated=chunk.finish_reason is not FinishReason.STOP)
        pieces = [self._piece(part) for part in parts]
        if self._logprobs and chunk.finish_reason is not None:
            pieces.append(self._text_piece(""))
        return pieces

    def answer(self) -> Message:
        """The whole answer as the client will replay it; call after the last chunk."""
        return self._reader.message()

    def turn(self, finish_reason: FinishReason) -> Turn:
        """What was sampled up to now, as the ledger will keep it."""
        if finish_reason in (FinishReason.ABORTED, FinishReason.ERROR):
            self._written.append(self._text.finish())
        arrival, text = self._task.arrival, "".join(self._written)
        finished = finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        # A client that left will not replay what it did not get, or replays a part of it as text.
        answer = self.answer() if finished else Message(role="assistant", content=text)
        return Turn(
            turn_id=arrival.turn_id,
            arrival=arrival,
            reply_hash=reply_hash(arrival.messages_hash, answer),
            answer_hash=answer_hash(answer),
            answer=answer,
            response_text=text,
            prompt_ids=self._prompt.ids,
            reused_ids=self._prompt.reused,
            response_ids=_joined([chunk.ids for chunk in self._chunks], np.int32),
            response_logps=_joined([chunk.logps for chunk in self._chunks], np.float32),
            spans=response_spans(self._chunks),
            sampling=self._task.sampling,
            finish_reason=finish_reason,
            started_at=self._started_at,
            finished_at=time.time(),
            replica=self._replica,
            overridden=self._task.overridden,
        )

    def finish(self, turn: Turn) -> FinishPiece:
        return FinishPiece(
            finish_reason=turn.finish_reason,
            spans=turn.spans,
            version=self.version,
            usage=Usage(prompt_tokens=len(turn.prompt_ids), completion_tokens=len(turn.response_ids)),
            message=turn.answer,
        )

    def _piece(self, part: Part) -> Delta:
        if isinstance(part, Reasoning):
            return ReasoningPiece(text=part.text, version=self.version)
        if isinstance(part, Call):
            return CallPiece(
                index=part.index, version=self.version, id=part.id, name=part.name, arguments=part.arguments
            )
        return self._text_piece(part.text)

    def _text_piece(self, text: str) -> TextPiece:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return TextPiece(text=text, version=self.version, logprobs=logprobs if self._task.logprobs else None)


def response_spans(chunks: list[TokenChunk]) -> tuple[VersionSpan, ...]:
    """Which version sampled which tokens; the last word has the engine, if it speaks one at the end."""
    if chunks and chunks[-1].spans is not None:
        return chunks[-1].spans
    return merge_spans(chunks)


def merge_spans(chunks: list[TokenChunk]) -> tuple[VersionSpan, ...]:
    """Consecutive chunks of one version as one span; empty chunks leave no trace."""
    spans: list[VersionSpan] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + len(chunk.ids)
        if start == end:
            continue
        if spans and spans[-1].version == chunk.version:
            start = spans.pop().start
        spans.append(VersionSpan(start=start, end=end, version=chunk.version))
    return tuple(spans)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
