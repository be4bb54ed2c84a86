"""Messages to prompt ids, through the tokenizer's own chat template.

The only place where a prompt is made. A prompt is never cut: one that leaves no room for a single token is a 400
with OpenAI's overflow wording. A completion budget that does not fit is clamped instead (`ChatRenderer.fit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from jinja2 import TemplateError

from clawrl.messages import Message, SamplingParams
from clawrl.serving.errors import context_overflow, invalid_request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatRenderer:
    """Stateless beside its tokenizer; ``context_length`` counts prompt and response tokens of one request."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template; serve an instruction-tuned model")
        self._tokenizer = tokenizer
        self._context_length = context_length

    def render(self, messages: Sequence[Message]) -> list[int]:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            ids = self._tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            raise invalid_request(f"The chat template refuses these messages: {error}", "messages") from None
        prompt_ids = cast(list[int], ids)
        if len(prompt_ids) > self._context_length - 1:
            raise context_overflow(self._context_length, len(prompt_ids))
        return prompt_ids

    def fit(self, sampling: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """``sampling`` with ``max_tokens`` clamped to what the prompt leaves of the context."""
        room = self._context_length - prompt_tokens
        return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)
