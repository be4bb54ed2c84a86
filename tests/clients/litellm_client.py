"""LiteLLM, which reaches a server by the prefix of the model's name: ``openai/`` or ``hosted_vllm/``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import litellm

from tests.clients.heard import SYSTEM, Endpoint, Heard, Spelling, call_of, conversation
from tests.clients.openai_sdk import TOOL

litellm.suppress_debug_info = True
SPELLING = Spelling(
    said=lambda text: [{"role": "user", "content": text}],
    gave=lambda results: [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in results],
)


def openai_completion(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _completed(at, "openai", texts)


def openai_stream(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _streamed(at, "openai", texts)


def vllm_completion(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _completed(at, "hosted_vllm", texts)


def vllm_stream(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _streamed(at, "hosted_vllm", texts)


def _completed(at: Endpoint, prefix: str, texts: Sequence[str]) -> tuple[Heard, ...]:
    """Whole answers, sent back as LiteLLM dumps them."""

    def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
        answer = litellm.completion(**_asked(at, prefix, history))
        return _heard(answer), [answer.choices[0].message.model_dump()]

    return conversation(texts, SPELLING, ask)


def _streamed(at: Endpoint, prefix: str, texts: Sequence[str]) -> tuple[Heard, ...]:
    """Chunks, put together by LiteLLM's own builder."""

    def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
        usage = {"stream_options": {"include_usage": True}}
        chunks = list(litellm.completion(**_asked(at, prefix, history), stream=True, **usage))
        answer = litellm.stream_chunk_builder(chunks)
        assert answer is not None, "nothing came"
        return _heard(answer, len(chunks)), [answer.choices[0].message.model_dump()]

    return conversation(texts, SPELLING, ask)


def _asked(at: Endpoint, prefix: str, history: Sequence[Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": f"{prefix}/{at.model}",
        "api_base": at.v1,
        "api_key": at.key,
        "messages": [{"role": "system", "content": SYSTEM}, *history],
        "max_tokens": at.max_tokens,
        "extra_headers": dict(at.headers),
        "max_retries": at.retries,
        "timeout": 60,
    }
    return asked | {"tools": [TOOL]} if at.tools else asked


def _heard(answer: Any, pieces: int = 0) -> Heard:
    choice, usage = answer.choices[0], getattr(answer, "usage", None)
    message = choice.message
    return Heard(
        text=message.content or "",
        finish=choice.finish_reason,
        reasoning=getattr(message, "reasoning_content", None) or "",
        calls=tuple(call_of(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        pieces=pieces,
    )
