"""A replica whose engine is a script: everything around the engine is the project's own.

The text of `script` is cut into pieces of one to five bytes and goes the way of sampled tokens. Some words in the last
message change what happens: with ``WAIT`` the answer is late, with ``BREAK`` it breaks off in its middle.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

import numpy as np

from clawrl.actors.answering import Answering
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.messages import FinishReason, Message, TemplateInputs, Turn
from clawrl.serving.config import ServingConfig
from clawrl.serving.parsing.formats import AUTO, format_for
from clawrl.serving.parsing.prompt import call_prefix
from clawrl.serving.pieces import Piece
from clawrl.serving.template import ChatRenderer
from tests.clients.script import written
from tests.clients.tokens import byte_tokenizer

VERSION = 3
CONTEXT_LENGTH = 20_000
LATE_S = 0.3
_BREAK_AFTER = 4


class _Script:
    """Stands for the engine. Put a task into ``tasks`` before its request comes."""

    version = VERSION

    def __init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.tasks: dict[str, GenerationTask] = {}
        self._renderer = ChatRenderer(self.tokenizer, CONTEXT_LENGTH)
        self._format = format_for(str(self.tokenizer.chat_template), AUTO)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        task = self.tasks.pop(request.request_id)
        arrival = task.arrival
        last = arrival.messages[-1].content
        if "WAIT" in last:
            await asyncio.sleep(LATE_S)
        text = written(arrival.messages, arrival.inputs.tools, self._begun(task))
        for number, chunk in enumerate(self._chunks(text, request.sampling.max_tokens)):
            if "BREAK" in last and number == _BREAK_AFTER:
                raise RuntimeError("the engine is gone")
            yield chunk
            await asyncio.sleep(0)

    def _begun(self, task: GenerationTask) -> str:
        if not task.tool_choice.required:
            return ""
        prompt = self._renderer.text(task.arrival.messages, task.arrival.inputs)
        return call_prefix(self._format, prompt, task.tool_choice.name)

    def _chunks(self, text: str, max_tokens: int) -> Iterator[TokenChunk]:
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), int(self.tokenizer.eos_token_id)]
        whole, ids = len(ids) <= max_tokens, ids[:max_tokens]
        sizes, at = itertools.cycle((1, 2, 3, 4, 5)), 0
        while at < len(ids):
            size = next(sizes)
            part, at = ids[at : at + size], at + size
            ended = None if at < len(ids) else FinishReason.STOP if whole else FinishReason.LENGTH
            yield TokenChunk(
                ids=np.asarray(part, dtype=np.int32),
                logps=np.full(len(part), -0.5, dtype=np.float32),
                version=VERSION,
                finish_reason=ended,
            )


class _Turns:
    """Stands for the recorder: keeps the turns that were answered."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns

    async def record(self, turn: Turn) -> None:
        self._turns.append(turn)

    def record_unawaited(self, turn: Turn) -> None:
        pass


class ScriptedReplica:
    """Appends each answered turn to ``turns``, before its last piece leaves."""

    def __init__(self, turns: list[Turn], config: ServingConfig) -> None:
        self._script = _Script()
        self._answering = Answering(
            self._script,
            self._script.tokenizer,
            config,
            _Turns(turns),
            context_length=CONTEXT_LENGTH,
            answer_format=AUTO,
            replica="scripted",
            waiting=lambda: 0,
        )

    async def generate(self, task: GenerationTask) -> AsyncGenerator[Piece, None]:
        self._script.tasks[task.arrival.turn_id] = task
        async with aclosing(self._answering.generate(task)) as items:
            async for item in items:
                if isinstance(item, Refused):
                    raise item.error
                yield item

    async def count_tokens(self, messages: Sequence[Message], inputs: TemplateInputs) -> int | Refused:
        return await self._answering.count_tokens(messages, inputs)
