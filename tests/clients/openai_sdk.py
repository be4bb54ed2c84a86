"""OpenAI's Python SDK and chat completions, in the ways in which programs use them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import openai
from pydantic import BaseModel

from tests.clients.heard import FETCH, SYSTEM, Endpoint, Heard, Spelling, call_of, conversation

TOOL: dict[str, Any] = {"type": "function", "function": FETCH}
# The helper that assembles streams takes strict tools only.
STRICT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": FETCH
    | {
        "strict": True,
        "parameters": FETCH["parameters"] | {"additionalProperties": False, "required": ["word", "depth"]},
    },
}
Form = TypeVar("Form", bound=BaseModel)
SPELLING = Spelling(
    said=lambda text: [{"role": "user", "content": text}],
    gave=lambda results: [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in results],
)


def client_of(at: Endpoint) -> openai.OpenAI:
    return openai.OpenAI(**_options(at))


def chat(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """Whole answers; the SDK's own message objects are sent back."""
    with client_of(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            answer = client.chat.completions.create(**_asked(at, history))
            return _heard(answer.choices[0], answer.usage), [answer.choices[0].message]

        return conversation(texts, SPELLING, ask)


def chat_async(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """The same through the client for coroutines."""

    async def answered(history: list[Any]) -> Any:
        async with openai.AsyncOpenAI(**_options(at)) as client:
            return await client.chat.completions.create(**_asked(at, history))

    def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
        answer = asyncio.run(answered(history))
        return _heard(answer.choices[0], answer.usage), [answer.choices[0].message]

    return conversation(texts, SPELLING, ask)


def chat_stream(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """Chunks, put together by hand; reasoning is read and not sent back. Usage is not asked for."""
    return _streamed(at, texts, {})


def chat_stream_with_usage(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _streamed(at, texts, {"stream_options": {"include_usage": True}})


def chat_helper(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """The SDK's helper that puts a stream together."""
    with client_of(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            with client.chat.completions.stream(**_asked(at, history, STRICT_TOOL)) as stream:
                pieces = sum(event.type == "chunk" for event in stream)
                answer = stream.get_final_completion()
            return _heard(answer.choices[0], answer.usage, pieces), [answer.choices[0].message]

        return conversation(texts, SPELLING, ask)


def several(at: Endpoint, text: str, count: int) -> tuple[Heard, ...]:
    """So many answers to one prompt; the usage is that of all of them."""
    with client_of(at) as client:
        answer = client.chat.completions.create(**_asked(at, SPELLING.said(text)), n=count)
        return tuple(_heard(choice, answer.usage) for choice in answer.choices)


def several_streamed(at: Endpoint, text: str, count: int) -> tuple[Heard, ...]:
    """The same from one stream, by the index of its choices."""
    with client_of(at) as client:
        with client.chat.completions.stream(**_asked(at, SPELLING.said(text), STRICT_TOOL), n=count) as stream:
            answer = stream.get_final_completion()
        return tuple(_heard(choice, answer.usage) for choice in answer.choices)


def logprobs(at: Endpoint, text: str) -> tuple[tuple[str, float], ...]:
    """Each token of an answer and its log-prob."""
    with client_of(at) as client:
        answer = client.chat.completions.create(**_asked(at, SPELLING.said(text)), logprobs=True)
    found = answer.choices[0].logprobs
    return tuple((entry.token, entry.logprob) for entry in (found.content or ())) if found else ()


def forced(at: Endpoint, text: str, choice: str | dict[str, Any]) -> Heard:
    """One answer that ``choice`` wants to be a call."""
    with client_of(at) as client:
        answer = client.chat.completions.create(**_asked(at, SPELLING.said(text)), tool_choice=choice)
        return _heard(answer.choices[0], answer.usage)


def parsed(at: Endpoint, text: str, form: type[Form]) -> Form:
    """An answer that is to be of this class, by the SDK's helper."""
    with client_of(at) as client:
        answer = client.chat.completions.parse(**_asked(at, SPELLING.said(text)), response_format=form)
    found = answer.choices[0].message.parsed
    assert found is not None, "nothing was parsed"
    return found


def json_object(at: Endpoint, text: str) -> str:
    """An answer that is to be some JSON object."""
    with client_of(at) as client:
        answer = client.chat.completions.create(
            **_asked(at, SPELLING.said(text)), response_format={"type": "json_object"}
        )
    return answer.choices[0].message.content or ""


def _options(at: Endpoint) -> dict[str, Any]:
    headers = dict(at.headers)
    return {"base_url": at.v1, "api_key": at.key, "default_headers": headers, "max_retries": at.retries, "timeout": 60}


def _asked(at: Endpoint, history: Sequence[Any], tool: Mapping[str, Any] = TOOL) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, *history]
    asked = {"model": at.model, "messages": messages, "max_completion_tokens": at.max_tokens}
    return asked | {"tools": [tool]} if at.tools else asked


def _heard(choice: Any, usage: Any, pieces: int = 0) -> Heard:
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


def _streamed(at: Endpoint, texts: Sequence[str], options: Mapping[str, Any]) -> tuple[Heard, ...]:
    with client_of(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            with client.chat.completions.create(**_asked(at, history), stream=True, **options) as chunks:
                heard, message = _put_together(chunks)
            return heard, [message]

        return conversation(texts, SPELLING, ask)


def _put_together(chunks: Iterable[Any]) -> tuple[Heard, dict[str, Any]]:
    """Raises ``AssertionError`` for a call that does not say its id and its name first."""
    said: list[str] = []
    thought: list[str] = []
    calls: list[dict[str, Any]] = []
    finish, usage, pieces = None, None, 0
    for chunk in chunks:
        pieces += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            said.append(choice.delta.content or "")
            thought.append(getattr(choice.delta, "reasoning_content", None) or "")
            for part in choice.delta.tool_calls or ():
                if part.index == len(calls):
                    assert part.id and part.function.name, "a call began without its id or its name"
                    calls.append({"id": part.id, "type": "function", "function": {"name": part.function.name}})
                    calls[-1]["function"]["arguments"] = ""
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
    heard = Heard(
        text=message["content"],
        finish=finish,
        reasoning="".join(thought),
        calls=tuple(call_of(call["id"], **call["function"]) for call in calls),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        pieces=pieces,
    )
    return heard, message | {"tool_calls": calls} if calls else message
