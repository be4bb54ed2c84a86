"""A file of conversations: JSON lines of ``{"messages": [...]}`` (also OpenAI's format for fine-tuning), or an export.

An export of turns, in JSON lines or Parquet, has its sessions put together again: the request of a session's newest
turn, the answer, and what came after that. A file is read and checked as a whole before anything is done with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clawrl.turn_files.rows import Row, TurnFileError, read_rows

Message = dict[str, Any]
History = Literal["own", "recorded"]
_ROLES = ("system", "developer", "user", "assistant", "tool")
# Weights and names of a fine-tuning set are not a server's business.
_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")
_OF_EXPORT = ("seq", "owner", "session", "kind", "text_gone", "messages", "answer", "evidence", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """``number`` is its place in the file; ``digest`` names its words."""

    number: int
    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()

    @property
    def digest(self) -> str:
        written = json.dumps([self.messages, self.tools], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:16]


def read_conversations(file: Path) -> list[Conversation]:
    """All of it. Raises `TurnFileError`."""
    rows = list(read_rows(file))
    if not rows:
        raise TurnFileError(f"{file} holds no conversation")
    if any("sealed" in row for _, row in rows):
        raise TurnFileError(f"{file} is a sealed export; make a plain one of it with `clawrl open-turns`")
    if all({"turn_id", "answer"} <= row.keys() for _, row in rows):
        found = list(_of_export(file, rows))
    else:
        found = [_conversation(f"{file}, line {line}", number, row) for number, (line, row) in enumerate(rows)]
    if not any(asks(conversation.messages) for conversation in found):
        raise TurnFileError(f"{file} holds no message of a user, so that there is nothing to ask")
    return found


def playable(messages: Sequence[Message], history: History) -> tuple[list[Message], int]:
    """What of a conversation is sent, and how many messages are not."""
    if history == "recorded":
        return list(messages), 0
    for at, message in enumerate(messages):
        if message["role"] == "tool" or message.get("tool_calls"):
            # The answer in the place of the call is asked for; what followed the call is not evidence for it.
            kept = list(messages[: at + 1 if message["role"] == "assistant" else at])
            return kept, len(messages) - len(kept)
    return list(messages), 0


def asks(messages: Sequence[Message]) -> bool:
    """Whether a user says anything."""
    return any(message["role"] == "user" for message in messages)


def _conversation(where: str, number: int, row: Row) -> Conversation:
    messages, tools = row.get("messages"), row.get("tools")
    if not isinstance(messages, list) or not messages:
        raise TurnFileError(f'{where}: a conversation is {{"messages": [...]}} with at least one message')
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise TurnFileError(f"{where}: messages[{at}] needs a role, one of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str | list | None):
            raise TurnFileError(f"{where}: messages[{at}].content must be a text or a list of parts")
        if not isinstance(message.get("tool_calls"), list | None):
            raise TurnFileError(f"{where}: messages[{at}].tool_calls must be a list")
    if not isinstance(tools, list | None) or not all(isinstance(tool, dict) for tool in tools or ()):
        raise TurnFileError(f"{where}: tools must be a list of objects")
    kept = tuple({name: value for name, value in message.items() if name in _SENT} for message in messages)
    return Conversation(number=number, messages=kept, tools=tuple(tools or ()))


def _of_export(file: Path, rows: Sequence[tuple[int, Row]]) -> Iterator[Conversation]:
    """One a session, in the order in which the sessions began."""
    newest: dict[tuple[str, str], tuple[int, Row]] = {}
    for line, row in rows:
        if gone := [name for name in _OF_EXPORT if name not in row]:
            raise TurnFileError(f"{file}, line {line}: this is not a row of an export: {gone[0]} is missing")
        if not isinstance(row["seq"], int):
            raise TurnFileError(f"{file}, line {line}: this is not a row of an export: seq is not a whole number")
    for line, row in sorted(rows, key=lambda numbered: numbered[1]["seq"]):
        if row["kind"] == "main" and not row["text_gone"]:
            newest[str(row["owner"]), str(row["session"])] = line, row
    for number, (line, row) in enumerate(newest.values()):
        where = f"{file}, line {line}"
        try:
            said = [_of_row(message) for part in ("messages", "answer", "evidence") for message in row[part]]
            tools = [json.loads(tool) for tool in row["tools"]]
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise TurnFileError(f"{where}: this is not a row of an export: {error!r}") from error
        yield _conversation(where, number, {"messages": said, "tools": tools})


def _of_row(message: Row) -> Message:
    found: Message = {"role": message["role"], "content": message["content"]}
    if message["tool_calls"]:
        found["tool_calls"] = json.loads(message["tool_calls"])
    return found | {name: message[name] for name in ("tool_call_id", "name") if message[name]}
