"""Every way in which a Python client is driven, with the words that it has for how an answer ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.clients import anthropic_sdk, langchain, litellm_client, openai_responses, openai_sdk
from tests.clients.heard import Heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How a client calls the end of an answer, of one with calls, and of one that was cut off."""

    stop: str
    call: str
    length: str


CHAT = Words(stop="stop", call="tool_calls", length="length")
RESPONSES = Words(stop="completed", call="completed", length="incomplete")
MESSAGES = Words(stop="end_turn", call="tool_use", length="max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """``shows``: the client tells its caller of reasoning; ``returns``: it sends it back with the history."""

    converse: Callable[..., tuple[Heard, ...]]
    words: Words
    streams: bool = False
    shows: bool = True
    returns: bool = True

    @property
    def name(self) -> str:
        return f"{self.converse.__module__.split('.')[-1]}.{self.converse.__name__}"


WAYS = [
    Way(converse=openai_sdk.chat, words=CHAT),
    Way(converse=openai_sdk.chat_async, words=CHAT),
    Way(converse=openai_sdk.chat_stream, words=CHAT, streams=True, returns=False),
    Way(converse=openai_sdk.chat_stream_with_usage, words=CHAT, streams=True, returns=False),
    Way(converse=openai_sdk.chat_helper, words=CHAT, streams=True),
    Way(converse=openai_responses.responses, words=RESPONSES),
    Way(converse=openai_responses.responses_stream, words=RESPONSES, streams=True),
    Way(converse=openai_responses.responses_events, words=RESPONSES, streams=True),
    Way(converse=openai_responses.responses_chained, words=RESPONSES),
    Way(converse=anthropic_sdk.create, words=MESSAGES),
    Way(converse=anthropic_sdk.stream, words=MESSAGES, streams=True),
    Way(converse=anthropic_sdk.stream_with_bearer, words=MESSAGES),
    Way(converse=langchain.invoke, words=CHAT, shows=False, returns=False),
    Way(converse=langchain.stream, words=CHAT, streams=True, shows=False, returns=False),
    Way(converse=langchain.invoke_responses, words=RESPONSES),
    Way(converse=langchain.stream_responses, words=RESPONSES, streams=True, shows=False, returns=False),
    Way(converse=litellm_client.openai_completion, words=CHAT),
    Way(converse=litellm_client.openai_stream, words=CHAT, streams=True),
    Way(converse=litellm_client.vllm_completion, words=CHAT),
    Way(converse=litellm_client.vllm_stream, words=CHAT, streams=True),
]
