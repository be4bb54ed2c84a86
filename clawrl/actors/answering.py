"""One request answered by one engine: its prompt, its pieces, its turn. Knows nothing of Ray.

In: a `GenerationTask`, whose prompt is made here, of the ids of earlier turns where it extends them. Out: pieces of
the answer as tokens are sampled, then a finish piece; or `Refused`, before the first piece or in the stead of the last.
The finish piece waits until the turn is recorded. A client that goes away frees the slot at once and its turn is
recorded as aborted. A request that was refused before a token was sampled has no turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from clawrl.actors.generation import GenerationTask, Refused
from clawrl.actors.prompt_desk import PromptDesk
from clawrl.actors.transcript import Transcript
from clawrl.engine.errors import EngineError, NoPlace, UnsupportedRequest
from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.messages import FinishReason, Message, TemplateInputs, Turn
from clawrl.metrics.answers import AnswerMeter
from clawrl.metrics.sink import NOTHING, Sink
from clawrl.serving import errors
from clawrl.serving.config import ServingConfig
from clawrl.serving.errors import ApiError
from clawrl.serving.parsing.formats import AUTO, FORMATS, AnswerFormat, format_for
from clawrl.serving.parsing.prompt import call_prefix, thought_closed
from clawrl.serving.parsing.reader import MalformedCall
from clawrl.serving.pieces import Piece
from clawrl.serving.tool_text import knows_tools
from clawrl.serving.trainability import is_empty

_LOOK_S = 0.02


class Generating(Protocol):
    """The part of an engine that answers."""

    @property
    def version(self) -> int: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]: ...


class Recording(Protocol):
    async def record(self, turn: Turn) -> None: ...

    def record_unawaited(self, turn: Turn) -> None: ...


class Answering:
    """``answer_format`` is a name or `AUTO`; ``waiting`` counts the requests that no slot was free for yet.

    ``may_rise``: whether the engine will still get newer versions. ``held`` requests wait for one; they count as
    waiting, since each keeps its prompt in memory. ``sink`` is told how each answer came.
    """

    def __init__(
        self,
        engine: Generating,
        tokenizer: PreTrainedTokenizerBase,
        config: ServingConfig,
        recorder: Recording,
        *,
        context_length: int,
        answer_format: str,
        replica: str,
        waiting: Callable[[], int],
        may_rise: Callable[[], bool] = lambda: True,
        sink: Sink = NOTHING,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._recorder = recorder
        self._replica = replica
        self._waiting = waiting
        self._may_rise = may_rise
        self._sink = sink
        self.held = 0
        self._desk = PromptDesk(tokenizer, context_length)
        template = str(tokenizer.chat_template)
        self._format = format_for(template, answer_format)
        # Tools that are told in text are called in the marks that the text names.
        told = answer_format == AUTO and not knows_tools(template)
        self._tool_format = FORMATS["hermes"] if told else self._format

    def close(self) -> None:
        self._desk.close()

    async def count_tokens(self, messages: Sequence[Message], inputs: TemplateInputs) -> int | Refused:
        try:
            return await self._desk.count(messages, inputs)
        except ApiError as error:
            return Refused(error=error)

    async def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `token_pieces`."""
        return await self._desk.pieces(ids)

    async def generate(self, task: GenerationTask) -> AsyncGenerator[Piece | Refused, None]:
        if self._is_full():
            yield Refused(error=errors.overloaded())
            return
        meter = AnswerMeter(self._sink)
        answer_format = self._tool_format if task.arrival.inputs.tools else self._format
        try:
            prompt = await self._desk.build(task.arrival, lambda text: _begun(answer_format, task, text))
        except ApiError as error:
            yield Refused(error=error)
            return
        # Again: of a burst all have come while the first prompts were made.
        if self._is_full():
            yield Refused(error=errors.overloaded())
            return
        await self._reach(task.floor)
        sampling = self._desk.fit(task.sampling, len(prompt.ids))
        transcript = Transcript(
            replace(task, sampling=sampling),
            prompt,
            self._tokenizer,
            # A mark in a string of JSON marks nothing.
            FORMATS["plain"] if sampling.json_schema else answer_format,
            replica=self._replica,
            version=self._engine.version,
        )
        request = GenerateRequest(
            request_id=task.arrival.turn_id,
            prompt_ids=prompt.ids,
            sampling=sampling,
            place_within_s=self._config.hold_timeout_s,
        )
        chunk: TokenChunk | Refused
        try:
            async with aclosing(self._engine.generate(request)) as chunks:
                chunk = await self._first(chunks, task)
                while isinstance(chunk, TokenChunk):
                    meter.took(len(chunk.ids))
                    for piece in transcript.add(chunk):
                        yield piece
                    if chunk.finish_reason is not None:
                        break
                    chunk = await anext(chunks)
        except (asyncio.CancelledError, GeneratorExit):
            # No await here: the task is being torn down. Recording goes on by itself.
            self._recorder.record_unawaited(transcript.turn(FinishReason.ABORTED))
            raise
        except MalformedCall:
            self._recorder.record_unawaited(transcript.turn(FinishReason.ERROR))
            yield Refused(error=errors.malformed_call())
            return
        except Exception as error:
            # Of a dead engine nobody has heard a word yet: another replica may answer, and its turn is the one to keep.
            if not (isinstance(error, EngineError) and transcript.is_empty):
                self._recorder.record_unawaited(transcript.turn(FinishReason.ERROR))
            raise
        finally:
            meter.ended(len(prompt.ids))
        if isinstance(chunk, Refused):
            yield chunk
            return
        assert chunk.finish_reason is not None
        turn = transcript.turn(chunk.finish_reason)
        self._desk.remember(turn, prompt)
        await self._recorder.record(turn)
        if is_empty(turn) and turn.finish_reason is FinishReason.STOP:
            yield Refused(error=errors.empty_answer())
        else:
            yield transcript.finish(turn)

    async def _reach(self, floor: int) -> None:
        """A replica that missed a version catches up; one that will not leaves the request to another."""
        deadline = time.monotonic() + self._config.hold_timeout_s
        self.held += 1
        try:
            while (version := self._engine.version) < floor:
                if time.monotonic() >= deadline or not self._may_rise():
                    raise EngineError(f"this replica holds version {version}, and the request wants {floor} or newer")
                await asyncio.sleep(_LOOK_S)
        finally:
            self.held -= 1

    async def _first(self, chunks: AsyncGenerator[TokenChunk, None], task: GenerationTask) -> TokenChunk | Refused:
        try:
            return await anext(chunks)
        except UnsupportedRequest as refusal:
            field = task.schema_field if refusal.param == "json_schema" else refusal.param
            return Refused(error=errors.invalid_request(str(refusal), field))
        except NoPlace:
            return Refused(error=errors.overloaded())

    def _is_full(self) -> bool:
        return self._waiting() + self.held >= self._config.max_waiting_requests


def _begun(answer_format: AnswerFormat, task: GenerationTask, prompt: str) -> str:
    """How the answer must begin to be the tool call, or the JSON, that the client insists on. Raises `ApiError`."""
    if not task.tool_choice.required:
        return thought_closed(answer_format, prompt) if task.sampling.json_schema else ""
    try:
        return call_prefix(answer_format, prompt, task.tool_choice.name)
    except ValueError as error:
        raise errors.invalid_request(f"'tool_choice': {error}.", "tool_choice") from None
