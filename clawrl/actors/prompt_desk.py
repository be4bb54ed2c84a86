"""Makes prompts in a thread of its own, one after the other, so that a long one delays nobody's stream.

The thread has a tokenizer to itself: they are not made for two threads.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from clawrl.engine.textstream import token_pieces
from clawrl.messages import Arrival, Message, SamplingParams, TemplateInputs, Turn
from clawrl.serving.prompts import Prompt, PromptBuilder
from clawrl.serving.template import ChatRenderer

T = TypeVar("T")


class PromptDesk:
    def __init__(self, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        own = copy.deepcopy(tokenizer)
        self._tokenizer = own
        self._renderer = ChatRenderer(own, context_length)
        self._prompts = PromptBuilder(self._renderer, lambda token: str(own.convert_ids_to_tokens(token)))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prompts")

    async def build(self, arrival: Arrival, prefill: Callable[[str], str]) -> Prompt:
        """Raises `ApiError` (400). See `PromptBuilder.build`."""
        return await self._run(lambda: self._prompts.build(arrival, prefill))

    def fit(self, sampling: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """See `ChatRenderer.fit`."""
        return self._renderer.fit(sampling, prompt_tokens)

    def remember(self, turn: Turn, prompt: Prompt) -> None:
        """Before any prompt that is asked for after this."""
        self._thread.submit(self._prompts.remember, turn, prompt)

    async def count(self, messages: Sequence[Message], inputs: TemplateInputs) -> int:
        """How many tokens the prompt of this request would have, also if it is too long to be served.

        Raises `ApiError` (400).
        """
        return await self._run(lambda: len(self._renderer.encode(self._renderer.text(messages, inputs))))

    async def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `token_pieces`."""
        return await self._run(lambda: token_pieces(self._tokenizer, ids))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
