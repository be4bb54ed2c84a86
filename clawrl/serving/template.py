"""Messages to prompt ids, through the tokenizer's own chat template.

The only place where a prompt is made. A prompt is never cut: one that leaves no room for a single token is a 400
with OpenAI's overflow wording. A completion budget that does not fit is clamped instead (`ChatRenderer.fit`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from clawrl.messages import NO_INPUTS, Message, SamplingParams, TemplateInputs, ToolCall
from clawrl.serving.errors import context_overflow, invalid_request
from clawrl.serving.openai_message import openai_message
from clawrl.serving.tool_text import knows_tools, told_in_text

_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)


def template_message(message: Message) -> dict[str, Any]:
    """As chat templates expect it. Arguments of a tool call are an object where they are one, else their text."""
    return openai_message(message, _arguments)


def _arguments(call: ToolCall) -> Any:
    try:
        value = json.loads(call.arguments)
    except ValueError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The same conversation without parallel calls, which Llama's templates refuse though the model makes them.

    A message with several calls becomes one for each, followed by what that call gave.
    """
    said: list[Message] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if len(message.tool_calls) < 2:
            said.append(message)
            continue
        # Ids of calls may come again later: only what follows at once belongs to these.
        results: list[Message] = []
        while at < len(messages) and messages[at].role == "tool":
            results.append(messages[at])
            at += 1
        for number, call in enumerate(message.tool_calls):
            said.append(replace(message if number == 0 else Message(role=message.role, content=""), tool_calls=(call,)))
            said += [result for result in results if result.tool_call_id == call.id]
        ids = {call.id for call in message.tool_calls}
        said += [result for result in results if result.tool_call_id not in ids]
    return said


class ChatRenderer:
    """Stateless beside its tokenizer; ``context_length`` counts prompt and response tokens of one request.

    Where the template does not ``knows_tools``, tools and calls are told in text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template; serve an instruction-tuned model")
        self._tokenizer = tokenizer
        self.knows_tools = knows_tools(str(tokenizer.chat_template))
        self._context_length = context_length

    def render(self, messages: Sequence[Message], inputs: TemplateInputs = NO_INPUTS) -> list[int]:
        """The prompt of a request. Raises `ApiError` (400)."""
        return self.fitting(self.encode(self.text(messages, inputs)))

    def text(self, messages: Sequence[Message], inputs: TemplateInputs = NO_INPUTS) -> str:
        """The prompt as text, up to the point where the assistant begins to speak."""
        arguments: dict[str, Any] = json.loads(inputs.arguments)
        if reserved := _RESERVED.intersection(arguments):
            raise invalid_request(
                f"'chat_template_kwargs' must not set {sorted(reserved)[0]!r}.", "chat_template_kwargs"
            )
        said = messages if self.knows_tools else told_in_text(messages, inputs.tools)
        # Templates are programs: given what their authors did not think of, they also raise what Python raises.
        try:
            return self._apply(said, inputs, arguments)
        except (TemplateError, TypeError, ValueError) as error:
            refusal = error
        if any(len(message.tool_calls) > 1 for message in said):
            try:
                return self._apply(one_call_each(said), inputs, arguments)
            except (TemplateError, TypeError, ValueError):
                pass
        raise invalid_request(f"The chat template refuses these messages: {refusal}", "messages")

    def _apply(self, said: Sequence[Message], inputs: TemplateInputs, arguments: dict[str, Any]) -> str:
        text = self._tokenizer.apply_chat_template(
            [template_message(message) for message in said],
            tools=[json.loads(tool) for tool in inputs.tools] or None,
            add_generation_prompt=True,
            tokenize=False,
            **arguments,
        )
        return cast(str, text)

    def encode(self, text: str) -> list[int]:
        """Ids of a piece of prompt text, special tokens in it included."""
        return cast(list[int], self._tokenizer.encode(text, add_special_tokens=False))

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._tokenizer.all_special_ids)

    def fitting(self, prompt_ids: list[int]) -> list[int]:
        if len(prompt_ids) > self._context_length - 1:
            raise context_overflow(self._context_length, len(prompt_ids))
        return prompt_ids

    def fit(self, sampling: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """``sampling`` with ``max_tokens`` clamped to what the prompt leaves of the context."""
        room = self._context_length - prompt_tokens
        return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)
