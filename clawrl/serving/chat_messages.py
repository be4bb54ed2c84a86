"""The ``messages`` array of a chat request, reduced to roles and text.

Content may be a string, a list of text parts (joined without a separator, as chat templates do), null or missing.
``developer`` is ``system``. What cannot reach the model (images, audio, tool calls) is refused by its path,
because a prompt without it would be another conversation than the client's.
"""

from __future__ import annotations

from typing import Any

from clawrl.messages import Message
from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, as_text, missing, wrong_type

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
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
    for name in ("tool_calls", "function_call"):
        if item.get(name):
            raise unsupported(
                f"{path}.{name}", f"'{path}.{name}': tool calls are not served.", "Send them as text in 'content'."
            )
    return Message(role=ROLES[role], content=_content(item.get("content"), f"{path}.content"))


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
