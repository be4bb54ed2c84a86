"""A message in the shape of OpenAI's chat completions, without what is not there. Needs no tokenizer and no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clawrl.messages import Message, ToolCall


def as_written(call: ToolCall) -> str:
    return call.arguments


def openai_message(message: Message, arguments: Callable[[ToolCall], Any] = as_written) -> dict[str, Any]:
    """``arguments`` gives those of each call."""
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [openai_call(call, arguments) for call in message.tool_calls]
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        said["name"] = message.name
    return said


def openai_call(call: ToolCall, arguments: Callable[[ToolCall], Any] = as_written) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call)}}
