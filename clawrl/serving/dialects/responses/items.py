"""The ``input`` of a responses request: a string, or items in the order in which they happened.

A string is one user message. Message items hold a string or text parts (joined without a separator); ``developer`` is
``system``. The assistant's reasoning, text and function calls are items of their own here and one message in a chat:
what follows each other joins, until text or reasoning comes after text, which begins another message. Text after a call
whose result has not come still belongs to it. Reasoning is read from its ``content``, or else from its ``summary``;
reasoning that is encrypted only has no text and is left out. The output of a function call is a ``tool`` message.

What cannot reach the model (images, files, items of other kinds) is refused by its path, because a prompt without it
would be another conversation than the client's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from clawrl.messages import Message, ToolCall
from clawrl.serving.dialects.common import arguments_text
from clawrl.serving.dialects.responses.tools import tool_name
from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, as_text, missing, wrong_type

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SAID = {"input_text", "output_text"}
_MEDIA = {"input_image", "input_file", "input_audio"}
_THOUGHT = {"reasoning_text", "text"}


def parse_input(body: JsonObject) -> tuple[Message, ...]:
    """At least one message. Raises `ApiError` with the path of the first thing that is wrong."""
    raw = body.get("input")
    if raw is None:
        raise missing("input")
    if isinstance(raw, str):
        return (Message(role="user", content=as_text(raw, "input")),)
    if not isinstance(raw, list):
        raise wrong_type(raw, "input", "a string or an array of items")
    items = (_item(as_object(item, f"input[{i}]"), f"input[{i}]") for i, item in enumerate(raw))
    messages = joined(item for item in items if item is not None)
    if not messages:
        raise invalid_request("Invalid 'input': nothing is said in it. Expected at least one message.", "input")
    return messages


def joined(items: Iterable[Message]) -> tuple[Message, ...]:
    """Each item as a message of its own in; the messages that they are parts of out."""
    messages: list[Message] = []
    for item in items:
        if messages and _continues(messages[-1], item):
            messages[-1] = _both(messages[-1], item)
        else:
            messages.append(item)
    return tuple(messages)


def _continues(before: Message, item: Message) -> bool:
    if before.role != "assistant" or item.role != "assistant":
        return False
    return bool(item.tool_calls) or bool(before.tool_calls) or not before.content


def _both(before: Message, item: Message) -> Message:
    return replace(
        before,
        content=before.content + item.content,
        reasoning=before.reasoning + item.reasoning,
        tool_calls=before.tool_calls + item.tool_calls,
    )


def _item(item: JsonObject, path: str) -> Message | None:
    match item.get("type"):
        case "message" | None:
            return _message(item, path)
        case "reasoning":
            reasoning = _reasoning(item, path)
            return Message(role="assistant", reasoning=reasoning) if reasoning else None
        case "function_call":
            return Message(role="assistant", tool_calls=(_call(item, path),))
        case "function_call_output":
            output = item.get("output")
            if output is None:
                raise missing(f"{path}.output")
            call_id = item.get("call_id")
            return Message(
                role="tool",
                content=_text(output, f"{path}.output"),
                tool_call_id=None if call_id is None else as_text(call_id, f"{path}.call_id"),
            )
        case kind:
            raise unsupported(
                f"{path}.type",
                f"'{path}': items of type {quoted(kind)} cannot be given to this model.",
                "Send messages, reasoning, function calls and their outputs.",
            )


def _message(item: JsonObject, path: str) -> Message:
    if item.get("role") is None:
        raise missing(f"{path}.role")
    role = as_text(item["role"], f"{path}.role")
    if role not in ROLES:
        known = ", ".join(f"'{name}'" for name in ROLES)
        raise invalid_request(
            f"Invalid value for '{path}.role': {quoted(role)}. It must be one of {known}.", f"{path}.role"
        )
    content = item.get("content")
    return Message(role=ROLES[role], content="" if content is None else _text(content, f"{path}.content"))


def _call(item: JsonObject, path: str) -> ToolCall:
    if item.get("call_id") is None:
        raise missing(f"{path}.call_id")
    return ToolCall(
        id=as_text(item["call_id"], f"{path}.call_id"),
        name=tool_name(item, path).flat,
        arguments=arguments_text(item.get("arguments"), f"{path}.arguments"),
    )


def _reasoning(item: JsonObject, path: str) -> str:
    thought = _parts(item.get("content"), f"{path}.content", _THOUGHT)
    summary = _parts(item.get("summary"), f"{path}.summary", {"summary_text"})
    return "".join(thought) or "\n\n".join(summary)


def _parts(value: Any, path: str, kinds: set[str]) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(value, path, "an array of parts")
    return [_part(part, f"{path}[{i}]", kinds) for i, part in enumerate(value)]


def _text(value: Any, path: str) -> str:
    if isinstance(value, str):
        return as_text(value, path)
    if isinstance(value, list):
        return "".join(_parts(value, path, _SAID))
    raise wrong_type(value, path, "a string or an array of text parts")


def _part(value: Any, path: str, kinds: set[str]) -> str:
    part = as_object(value, path)
    kind = part.get("type")
    if isinstance(kind, str) and kind in kinds:
        if part.get("text") is None:
            raise missing(f"{path}.text")
        return as_text(part["text"], f"{path}.text")
    if isinstance(kind, str) and kind in _MEDIA:
        raise unsupported(path, f"'{path}': this model reads text only, no '{kind}'.", "Send text parts only.")
    known = " or ".join(f"'{name}'" for name in sorted(kinds))
    raise invalid_request(f"Invalid value for '{path}.type': {quoted(kind)}. It must be {known}.", f"{path}.type")
