"""The turn being written while its tokens leave: text for the client, exact ids for the ledger."""

from __future__ import annotations

import time

import numpy as np
from transformers import PreTrainedTokenizerBase

from clawrl.actors.generation import GenerationTask
from clawrl.engine.protocol import TokenChunk
from clawrl.engine.textstream import TextStream
from clawrl.messages import FinishReason, Turn, VersionSpan
from clawrl.serving.chat_response import TokenLogprob, Usage
from clawrl.serving.chat_stream import FinishPiece, TextPiece
from clawrl.serving.sessions import reply_hash


class Transcript:
    """Feed it chunks in order; it never changes an id or a log-prob."""

    def __init__(self, task: GenerationTask, tokenizer: PreTrainedTokenizerBase, *, replica: str, version: int) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._replica = replica
        self._text = TextStream(tokenizer, task.sampling.stop)
        self._pieces: list[str] = []
        self._chunks: list[TokenChunk] = []
        self._started_at = time.time()
        self.version = version

    def add(self, chunk: TokenChunk) -> TextPiece | None:
        """The text that became final with this chunk; ``None`` while a character or stop string is undecided."""
        self._chunks.append(chunk)
        self.version = chunk.version
        text = self._text.push(chunk.ids.tolist())
        if chunk.finish_reason is not None:
            text += self._text.finish()
        self._pieces.append(text)
        logprobs = None
        if self._task.logprobs:
            pairs = zip(chunk.ids.tolist(), chunk.logps.tolist(), strict=True)
            logprobs = tuple(TokenLogprob(token=self._tokenizer.decode([i]), logprob=p) for i, p in pairs)
        return TextPiece(text=text, version=chunk.version, logprobs=logprobs) if text or logprobs else None

    def turn(self, finish_reason: FinishReason) -> Turn:
        """What was sampled up to now, as the ledger will keep it."""
        if finish_reason in (FinishReason.ABORTED, FinishReason.ERROR):
            self._pieces.append(self._text.finish())
        text = "".join(self._pieces)
        arrival = self._task.arrival
        return Turn(
            turn_id=arrival.turn_id,
            arrival=arrival,
            reply_hash=reply_hash(arrival.messages_hash, text),
            response_text=text,
            prompt_ids=self._task.prompt_ids,
            response_ids=_joined([chunk.ids for chunk in self._chunks], np.int32),
            response_logps=_joined([chunk.logps for chunk in self._chunks], np.float32),
            spans=merge_spans(self._chunks),
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
        )


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
