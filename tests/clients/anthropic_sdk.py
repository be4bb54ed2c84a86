"""Anthropic's Python SDK: whole messages, its stream helper, and counting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic

from tests.clients.heard import FETCH, SYSTEM, Endpoint, Heard, HeardCall, Spelling, conversation

TOOL: dict[str, Any] = {
    "name": FETCH["name"],
    "description": FETCH["description"],
    "input_schema": FETCH["parameters"],
}
SPELLING = Spelling(
    said=lambda text: [{"role": "user", "content": text}],
    gave=lambda results: [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result} for call, result in results],
        }
    ],
)


def create(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """Whole messages; the SDK's own content blocks are sent back."""
    with _client(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            message = client.messages.create(**_asked(at, history))
            return _heard(message), [{"role": "assistant", "content": message.content}]

        return conversation(texts, SPELLING, ask)


def stream(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """The helper that puts a stream together; what it assembles must be what its text events said."""
    with _client(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            said, pieces = "", 0
            with client.messages.stream(**_asked(at, history)) as events:
                for event in events:
                    pieces += 1
                    said += event.text if event.type == "text" else ""
                message = events.get_final_message()
            heard = _heard(message, pieces)
            assert said == heard.text, "the text events and the final message differ"
            return heard, [{"role": "assistant", "content": message.content}]

        return conversation(texts, SPELLING, ask)


def stream_with_bearer(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """The same with the key as a bearer token, as agents send it."""
    with anthropic.Anthropic(auth_token=at.key, **_options(at)) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            with client.messages.stream(**_asked(at, history)) as events:
                message = events.get_final_message()
            return _heard(message), [{"role": "assistant", "content": message.content}]

        return conversation(texts, SPELLING, ask)


def forced(at: Endpoint, text: str, choice: dict[str, Any]) -> Heard:
    """One answer that ``choice`` wants to be a call."""
    with _client(at) as client:
        return _heard(client.messages.create(**_asked(at, SPELLING.said(text)), tool_choice=choice))


def counted(at: Endpoint, text: str) -> int:
    """How long the prompt is by ``count_tokens``."""
    with _client(at) as client:
        asked = _asked(at, SPELLING.said(text))
        del asked["max_tokens"]
        return int(client.messages.count_tokens(**asked).input_tokens)


def _options(at: Endpoint) -> dict[str, Any]:
    headers = dict(at.headers)
    return {"base_url": at.base_url, "default_headers": headers, "max_retries": at.retries, "timeout": 60}


def _client(at: Endpoint) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key=at.key, **_options(at))


def _asked(at: Endpoint, history: Sequence[Any]) -> dict[str, Any]:
    asked = {"model": at.model, "system": SYSTEM, "messages": list(history), "max_tokens": at.max_tokens}
    return asked | {"tools": [TOOL]} if at.tools else asked


def _heard(message: Any, pieces: int = 0) -> Heard:
    blocks = message.content
    return Heard(
        text="".join(block.text for block in blocks if block.type == "text"),
        finish=message.stop_reason,
        reasoning="".join(block.thinking for block in blocks if block.type == "thinking"),
        calls=tuple(
            HeardCall(id=block.id, name=block.name, arguments=dict(block.input))
            for block in blocks
            if block.type == "tool_use"
        ),
        prompt_tokens=message.usage.input_tokens,
        completion_tokens=message.usage.output_tokens,
        pieces=pieces,
    )
