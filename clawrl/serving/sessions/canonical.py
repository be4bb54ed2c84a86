"""Which messages are the same, whoever spells them, and the hashes that link a request to the turn it continues.

Every turn gets the hash of its messages plus its reply, and a request that continues it carries the same hash as its
prefix. The hash is a chain over canonical messages, so that it survives what clients do on replay: parts for strings,
other ids of tool calls, other spellings of arguments, no reasoning, trimmed whitespace, messages of their own that come
and go. An assistant's text is chained line by line without its blank lines, since some clients join consecutive answers
into one: two answers and the two of them joined by a line break have one hash.

The system messages at the head are no part of the chain: a client writes them anew with every date, and where no
session is named the chain alone finds the turn before. Whether they are the same is for the segment to say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any

from clawrl.messages import Message
from clawrl.serving.sessions.evidence import without_internal, without_unheard

_ORIGIN = bytes(32).hex()
_EXACT = 2**53
"""Up to here a double holds every integer."""


def canonical(message: Message) -> bytes:
    """The bytes that two spellings of one message share. JSON, so that role and text cannot run into each other."""
    role = "system" if message.role == "developer" else message.role
    said: list[Any] = [role, message.content.strip()]
    if message.tool_calls:
        said.append([[call.name, _canonical_arguments(call.arguments)] for call in message.tool_calls])
    return json.dumps(said, ensure_ascii=False, sort_keys=True).encode()


def conversation_hash(messages: Sequence[Message], after: str = _ORIGIN) -> str:
    """The chained hash of the messages in order, as hex, without the system messages at the head, what is internal to
    the client, and what nobody heard.

    ``after`` is the hash of messages that stand before them.
    """
    return _chain(after, without_internal(without_unheard(_without_head(messages) if after == _ORIGIN else messages)))


def reply_hash(messages_hash: str, reply: Message) -> str:
    """What a request that continues this turn will carry as its ``prefix_hash``: the chain, and the reply."""
    return _chain(messages_hash, (reply,))


def answer_hash(message: Message) -> str:
    """The hash of one assistant message alone, whatever came before it. Empty for one that says nothing."""
    link = _chain(_ORIGIN, (message,))
    return "" if link == _ORIGIN else link


def opening_hash(messages: Sequence[Message]) -> str:
    """The hash of the messages up to and including the first from the user."""
    spoken = without_internal(messages)
    return _chain(_ORIGIN, spoken[: next((i + 1 for i, m in enumerate(spoken) if m.role == "user"), len(spoken))])


def segment_hash(messages: Sequence[Message], tools: Sequence[str]) -> str:
    """The hash of what a prompt begins with: the system messages in front, and the tools."""
    system = takewhile(_instructs, messages)
    return hashlib.sha256((_chain(_ORIGIN, system) + json.dumps(list(tools))).encode()).hexdigest()


def _without_head(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(dropwhile(_instructs, messages))


def _instructs(message: Message) -> bool:
    return message.role in ("system", "developer")


def _chain(link: str, messages: Iterable[Message]) -> str:
    digest = bytes.fromhex(link)
    for message in messages:
        for part in _parts(message):
            digest = hashlib.sha256(digest + part).digest()
    return digest.hex()


def _parts(message: Message) -> Iterator[bytes]:
    if message.role != "assistant":
        yield canonical(message)
        return
    for line in message.content.splitlines():
        if said := line.strip():
            # No canonical message begins with a line break, so that a line cannot pass for one.
            yield b"\n" + said.encode()
    if message.tool_calls:
        yield canonical(replace(message, content=""))


def _canonical_arguments(text: str) -> Any:
    try:
        value = json.loads(text, parse_float=_number, parse_int=_integer, parse_constant=str)
    except (ValueError, RecursionError):
        return text.strip()
    return value


def _integer(text: str) -> int | float:
    """A client that has one kind of number sends a large integer back as the nearest that it knows."""
    value = int(text)
    return value if abs(value) <= _EXACT else _number(text)


def _number(text: str) -> int | float:
    """5.0 comes back as 5 from a client whose language has one kind of number."""
    value = float(text)
    return int(value) if value.is_integer() else value
