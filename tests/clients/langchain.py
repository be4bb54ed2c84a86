"""LangChain's ``ChatOpenAI`` with a tool bound to it: invoked, streamed, and through the Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.clients.heard import FETCH, SYSTEM, Endpoint, Heard, HeardCall, Spelling, conversation
from tests.clients.openai_sdk import Form

SPELLING = Spelling(
    said=lambda text: [HumanMessage(text)],
    gave=lambda results: [ToolMessage(result, tool_call_id=call.id, name=call.name) for call, result in results],
)


def invoke(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _invoked(at, texts, {})


def stream(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """Chunks, added up as LangChain adds them."""
    return _streamed(at, texts, {})


def invoke_responses(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _invoked(at, texts, {"use_responses_api": True})


def stream_responses(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    return _streamed(at, texts, {"use_responses_api": True})


def forced(at: Endpoint, text: str) -> Heard:
    """One answer that must be a call of the tool."""
    model = _model(at, {}).bind_tools([FETCH], tool_choice=FETCH["name"])
    return _heard(model.invoke([SystemMessage(SYSTEM), *SPELLING.said(text)]))


def parsed(at: Endpoint, text: str, form: type[Form]) -> Form:
    """An answer that is to be of this class, with the method that LangChain prefers."""
    found = _model(at, {}).with_structured_output(form).invoke([SystemMessage(SYSTEM), *SPELLING.said(text)])
    assert isinstance(found, form)
    return found


def _invoked(at: Endpoint, texts: Sequence[str], options: dict[str, Any]) -> tuple[Heard, ...]:
    model = _bound(at, options)

    def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
        message = model.invoke([SystemMessage(SYSTEM), *history])
        return _heard(message), [message]

    return conversation(texts, SPELLING, ask)


def _streamed(at: Endpoint, texts: Sequence[str], options: dict[str, Any]) -> tuple[Heard, ...]:
    model = _bound(at, options)

    def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
        whole: AIMessageChunk | None = None
        pieces = 0
        for chunk in model.stream([SystemMessage(SYSTEM), *history]):
            pieces += 1
            whole = chunk if whole is None else whole + chunk
        assert whole is not None, "nothing came"
        return _heard(whole, pieces), [whole]

    return conversation(texts, SPELLING, ask)


def _model(at: Endpoint, options: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=at.v1,
        api_key=SecretStr(at.key),
        model=at.model,
        default_headers=at.headers,
        max_retries=at.retries,
        max_tokens=at.max_tokens,
        timeout=60,
        **options,
    )


def _bound(at: Endpoint, options: dict[str, Any]) -> Any:
    model = _model(at, options)
    return model.bind_tools([FETCH]) if at.tools else model


def _heard(message: AIMessage, pieces: int = 0) -> Heard:
    facts, usage = message.response_metadata, message.usage_metadata
    thought = [block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning"]
    return Heard(
        text=message.text,
        finish=facts.get("finish_reason") or facts.get("status"),
        reasoning="".join(thought),
        calls=tuple(
            HeardCall(id=call["id"] or "", name=call["name"], arguments=call["args"]) for call in message.tool_calls
        ),
        prompt_tokens=usage["input_tokens"] if usage else None,
        completion_tokens=usage["output_tokens"] if usage else None,
        pieces=pieces,
    )
