"""What clients make of a server's answers, in one vocabulary for all of them, and the conversation that they hold.

A driver takes an `Endpoint` and the texts that a user says one after the other. It offers the tool `FETCH`, runs it as
often as it is called, sends the results back, and returns one `Heard` for each answer, in order. It goes through its
client alone, so that it may be pointed at any server; what the client raises is not caught.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ROUNDS = 8
SYSTEM = "You run what you are told to run."
FETCH: dict[str, Any] = {
    "name": "fetch",
    "description": "Fetches what a word stands for.",
    "parameters": {
        "type": "object",
        "properties": {
            "word": {"type": "string", "description": "the word"},
            "depth": {"type": "number", "description": "how far to look"},
        },
        "required": ["word"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """``base_url`` has no path. ``retries`` is how often a client may try again, ``tools`` whether it offers any."""

    base_url: str
    key: str
    model: str
    session: str | None = None
    max_tokens: int = 2000
    retries: int = 0
    tools: bool = True

    @property
    def v1(self) -> str:
        return f"{self.base_url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.session is None else {"X-Session-Id": self.session}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardCall:
    """``arguments`` as the client would hand them to a tool."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One answer. ``finish`` is in the client's words; ``pieces`` is how many parts a streamed answer came in."""

    text: str
    finish: str | None
    reasoning: str = ""
    calls: tuple[HeardCall, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    pieces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a client writes down what a user says and what tools gave back: each a list of its own kind of messages."""

    said: Callable[[str], list[Any]]
    gave: Callable[[Sequence[tuple[HeardCall, str]]], list[Any]]


def fetched(call: HeardCall) -> str:
    """What the tool gives back for a call of it."""
    return f"{str(call.arguments.get('word', '')).upper()} was found"


def call_of(call_id: str, name: str, arguments: str) -> HeardCall:
    """A call whose arguments came as JSON text. Raises ``ValueError`` where that is no object."""
    value = json.loads(arguments)
    if not isinstance(value, dict):
        raise ValueError(f"the arguments of {name!r} are no object: {arguments}")
    return HeardCall(id=call_id, name=name, arguments=value)


def conversation(
    texts: Sequence[str], spelling: Spelling, ask: Callable[[list[Any]], tuple[Heard, list[Any]]]
) -> tuple[Heard, ...]:
    """``ask`` takes the whole history, in the client's own messages, and returns the answer and what is kept of it."""
    heard: list[Heard] = []
    history: list[Any] = []
    for text in texts:
        history += spelling.said(text)
        for _ in range(MAX_ROUNDS):
            answer, kept = ask(history)
            heard.append(answer)
            history += kept
            if not answer.calls:
                break
            history += spelling.gave([(call, fetched(call)) for call in answer.calls])
    return tuple(heard)
