"""``system`` and ``messages`` of a messages request, as the messages that a chat template knows.

Content is a string or a list of blocks. A user message becomes one ``tool`` message for each of its tool results and
then, if it has text, a ``user`` message; an assistant's becomes one message with its reasoning, text and tool calls.
``system`` comes first, and messages with the role ``system`` stay where the client put them.

Text blocks are joined by a line break, but an assistant's without: they are pieces of one answer that must come back as
it was written. ``redacted_thinking`` holds nothing that can be read and is left out. A tool result that is an error
says so in its text, since templates know no such flag. What cannot reach the model (images, documents) is refused by
its path, because a prompt without it would be another conversation than the client's; ``cache_control``, signatures and
citations change no prompt and are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clawrl.messages import Message, ToolCall
from clawrl.serving.errors import ApiError, invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, as_text, flag, missing, wrong_type

ROLES = ("user", "assistant", "system")
_MEDIA = {"image", "document", "container_upload"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    kind: str
    fields: JsonObject
    path: str

    def text_of(self, name: str) -> str:
        if self.fields.get(name) is None:
            raise missing(f"{self.path}.{name}")
        return as_text(self.fields[name], f"{self.path}.{name}")


def parse_messages(body: JsonObject) -> tuple[Message, ...]:
    """Raises `ApiError` with the path of the first thing that is wrong."""
    raw = body.get("messages")
    if raw is None:
        raise missing("messages")
    if not isinstance(raw, list):
        raise wrong_type(raw, "messages", "an array of objects")
    if not raw:
        raise invalid_request("Invalid 'messages': empty array. Expected at least one message.", "messages")
    read = [message for i, item in enumerate(raw) for message in _messages(item, f"messages[{i}]")]
    return (*_instructions(body.get("system")), *read)


def _instructions(value: Any) -> tuple[Message, ...]:
    text = "" if value is None else _plain(value, "system")
    return (Message(role="system", content=text),) if text else ()


def _messages(value: Any, path: str) -> Iterator[Message]:
    item = as_object(value, path)
    for name in ("role", "content"):
        if item.get(name) is None:
            raise missing(f"{path}.{name}")
    role, content, where = as_text(item["role"], f"{path}.role"), item["content"], f"{path}.content"
    match role:
        case "user":
            yield from _user(_blocks(content, where, ("text", "tool_result")))
        case "assistant":
            yield _assistant(_blocks(content, where, ("text", "thinking", "redacted_thinking", "tool_use")))
        case "system":
            yield Message(role="system", content=_plain(content, where))
        case _:
            raise invalid_request(
                f"Invalid value for '{path}.role': {quoted(role)}. It must be one of {_listed(ROLES)}.", f"{path}.role"
            )


def _user(blocks: Sequence[_Block]) -> Iterator[Message]:
    results = [block for block in blocks if block.kind == "tool_result"]
    for block in results:
        yield Message(role="tool", content=_result(block), tool_call_id=block.text_of("tool_use_id"))
    texts = [block.text_of("text") for block in blocks if block.kind == "text"]
    if texts or not results:
        yield Message(role="user", content="\n".join(texts))


def _result(block: _Block) -> str:
    content = block.fields.get("content")
    text = "" if content is None else _plain(content, f"{block.path}.content", ("text", "tool_reference"))
    failed = flag(block.fields, "is_error", f"{block.path}.is_error")
    return f"Error: {text}" if failed and not text.lstrip().lower().startswith("error") else text


def _assistant(blocks: Sequence[_Block]) -> Message:
    return Message(
        role="assistant",
        content="".join(block.text_of("text") for block in blocks if block.kind == "text"),
        reasoning="".join(block.text_of("thinking") for block in blocks if block.kind == "thinking"),
        tool_calls=tuple(_call(block) for block in blocks if block.kind == "tool_use"),
    )


def _call(block: _Block) -> ToolCall:
    path = f"{block.path}.input"
    if block.fields.get("input") is None:
        raise missing(path)
    arguments = json.dumps(as_object(block.fields["input"], path), ensure_ascii=False, separators=(",", ":"))
    return ToolCall(id=block.text_of("id"), name=block.text_of("name"), arguments=as_text(arguments, path))


def _plain(value: Any, path: str, allowed: Sequence[str] = ("text",)) -> str:
    """A tool that a search has found is said by its name: the model sees the definitions of all tools anyway."""
    return "\n".join(
        block.text_of("text" if block.kind == "text" else "tool_name") for block in _blocks(value, path, allowed)
    )


def _blocks(value: Any, path: str, allowed: Sequence[str]) -> list[_Block]:
    if isinstance(value, str):
        return [_Block(kind="text", fields={"text": as_text(value, path)}, path=path)]
    if not isinstance(value, list):
        raise wrong_type(value, path, "a string or an array of blocks")
    blocks = []
    for i, item in enumerate(value):
        where = f"{path}[{i}]"
        fields = as_object(item, where)
        kind = fields.get("type")
        if not isinstance(kind, str) or kind not in allowed:
            raise _refused(kind, where, allowed)
        blocks.append(_Block(kind=kind, fields=fields, path=where))
    return blocks


def _refused(kind: Any, path: str, allowed: Sequence[str]) -> ApiError:
    if isinstance(kind, str) and kind in _MEDIA:
        return unsupported(path, f"'{path}': this model reads text only, no '{kind}'.", "Send text blocks only.")
    return invalid_request(
        f"Invalid value for '{path}.type': {quoted(kind)}. It must be one of {_listed(allowed)} here.", f"{path}.type"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
