"""The ``messages`` array of a chat request.

Content may be a string, a list of text parts (joined without a separator, as chat templates do), null or missing.
``developer`` is ``system``. What cannot reach the model (images, audio) is refused by its path, because a prompt
without it would be another conversation than the client's.
"""

from __future__ import annotations

from typing import Any

from clawrl.messages import Message, ToolCall
from clawrl.serving.dialects.common import arguments_text
from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, as_text, missing, wrong_type

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONING = ("reasoning_content", "reasoning", "reasoning_text")
_MEDIA = {"image_url", "image", "input_image", "input_audio", "audio", "video_url", "file"}


def parse_messages(body: JsonObject) -> tuple[Message, ...]:
    raw = body.get("messages")
    if raw is None:
        raise missing("messages")
    if not isinstance(raw, list):
        raise wrong_type(raw, "messages", "an array of objects")
    if not raw:
        raise invalid_request("Invalid 'messages': empty array. Expected at least one message.", "messages")
    return tuple(_message(as_object(item, f"messages[{i}]"), f"messages[{i}]") for i, item in enumerate(raw))


def _message(item: JsonObject, path: str) -> Message:
    if item.get("role") is None:
        raise missing(f"{path}.role")
    role = as_text(item["role"], f"{path}.role")
    if role not in ROLES:
        known = ", ".join(f"'{name}'" for name in ROLES)
        raise invalid_request(
            f"Invalid value for '{path}.role': {quoted(role)}. It must be one of {known}.", f"{path}.role"
        )
    if item.get("function_call"):
        raise unsupported(f"{path}.function_call", f"'{path}.function_call' is not served.", "Use 'tool_calls'.")
    calls = item.get("tool_calls") or []
    if not isinstance(calls, list):
        raise wrong_type(calls, f"{path}.tool_calls", "an array of objects")
    return Message(
        role=ROLES[role],
        content=_content(item.get("content"), f"{path}.content"),
        reasoning=_reasoning(item, path) if role == "assistant" else "",
        tool_calls=tuple(
            _call(as_object(call, f"{path}.tool_calls[{i}]"), f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)
        ),
        tool_call_id=_text_of(item, "tool_call_id", path) if role == "tool" else None,
        name=_text_of(item, "name", path),
    )


def _call(value: object, path: str) -> ToolCall:
    item = as_object(value, path)
    if item.get("type") not in (None, "function"):
        raise unsupported(f"{path}.type", f"'{path}': only calls of functions are served.", "Use type 'function'.")
    if item.get("function") is None:
        raise missing(f"{path}.function")
    function = as_object(item["function"], f"{path}.function")
    if function.get("name") is None:
        raise missing(f"{path}.function.name")
    return ToolCall(
        id=_text_of(item, "id", path) or "",
        name=as_text(function["name"], f"{path}.function.name"),
        arguments=arguments_text(function.get("arguments"), f"{path}.function.arguments"),
    )


def _reasoning(item: JsonObject, path: str) -> str:
    """Under whichever name the client knows it."""
    given = [_text_of(item, name, path) for name in _REASONING]
    return next((text for text in given if text), "")


def _text_of(item: JsonObject, name: str, path: str) -> str | None:
    value = item.get(name)
    return None if value is None else as_text(value, f"{path}.{name}")


def _content(value: Any, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return as_text(value, path)
    if isinstance(value, list):
        return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(value))
    raise wrong_type(value, path, "a string or an array of text parts")


def _part(value: Any, path: str) -> str:
    part = as_object(value, path)
    kind = part.get("type")
    if kind == "text":
        if part.get("text") is None:
            raise missing(f"{path}.text")
        return as_text(part["text"], f"{path}.text")
    if isinstance(kind, str) and kind in _MEDIA:
        raise unsupported(path, f"'{path}': this model reads text only, no '{kind}'.", "Send text parts only.")
    raise invalid_request(f"Invalid value for '{path}.type': {quoted(kind)}. It must be 'text'.", f"{path}.type")
