"""OpenAI's Python SDK and the Responses API: whole, streamed, and going on from a response that the server keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.clients.heard import FETCH, SYSTEM, Endpoint, Heard, Spelling, call_of, conversation
from tests.clients.openai_sdk import Form, client_of

TOOL: dict[str, Any] = {"type": "function", **FETCH, "strict": False}
_ENDS = ("response.completed", "response.incomplete")
SPELLING = Spelling(
    said=lambda text: [{"role": "user", "content": text}],
    gave=lambda results: [
        {"type": "function_call_output", "call_id": call.id, "output": result} for call, result in results
    ],
)


def responses(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """Whole responses; all of their output items are sent back."""
    with client_of(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            response = client.responses.create(**_asked(at, history))
            return _heard(response), list(response.output)

        return conversation(texts, SPELLING, ask)


def responses_stream(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """The SDK's helper that follows a stream; what its last event holds must be what the deltas said."""
    with client_of(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            said, pieces, response = "", 0, None
            with client.responses.stream(**_asked(at, history)) as stream:
                for event in stream:
                    pieces += 1
                    said += event.delta if event.type == "response.output_text.delta" else ""
                    # The helper itself gives no final response for one that was cut off.
                    response = event.response if event.type in _ENDS else response
            assert response is not None and said == response.output_text, "the deltas and the whole response differ"
            return _heard(response, pieces), list(response.output)

        return conversation(texts, SPELLING, ask)


def responses_events(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """The bare events, of which only the last one's response is used."""
    with client_of(at) as client:

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            with client.responses.create(**_asked(at, history), stream=True) as stream:
                events = list(stream)
            return _heard(events[-1].response, len(events)), list(events[-1].response.output)

        return conversation(texts, SPELLING, ask)


def responses_chained(at: Endpoint, *texts: str) -> tuple[Heard, ...]:
    """Only what is new is sent, with the id of the response before it."""
    with client_of(at) as client:
        sent, previous = 0, None

        def ask(history: list[Any]) -> tuple[Heard, list[Any]]:
            nonlocal sent, previous
            new, sent = history[sent:], len(history)
            known = {} if previous is None else {"previous_response_id": previous}
            response = client.responses.create(**_asked(at, new), **known)
            previous = response.id
            return _heard(response), []

        return conversation(texts, SPELLING, ask)


def parsed(at: Endpoint, text: str, form: type[Form]) -> Form:
    """A response that is to be of this class, by the SDK's helper."""
    with client_of(at) as client:
        response = client.responses.parse(**_asked(at, SPELLING.said(text)), text_format=form)
    assert response.output_parsed is not None, "nothing was parsed"
    return response.output_parsed


def _asked(at: Endpoint, items: Sequence[Any]) -> dict[str, Any]:
    asked = {"model": at.model, "instructions": SYSTEM, "input": list(items), "max_output_tokens": at.max_tokens}
    return asked | {"tools": [TOOL]} if at.tools else asked


def _heard(response: Any, pieces: int = 0) -> Heard:
    thought = [part.text for item in response.output if item.type == "reasoning" for part in item.content or ()]
    calls = [item for item in response.output if item.type == "function_call"]
    return Heard(
        text=response.output_text,
        finish=response.status,
        reasoning="".join(thought),
        calls=tuple(call_of(call.call_id, call.name, call.arguments) for call in calls),
        prompt_tokens=response.usage.input_tokens if response.usage else None,
        completion_tokens=response.usage.output_tokens if response.usage else None,
        pieces=pieces,
    )
