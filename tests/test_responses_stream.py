"""The answer as a Response object and as events, held against the types and the reading of OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseInputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from clawrl.messages import FinishReason, Message, ToolCall, TurnId
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects import responses
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.responses.writer import ResponsesWriter
from clawrl.serving.errors import ApiError, context_overflow, overloaded
from clawrl.serving.pieces import (
    CallPiece,
    IdlePiece,
    Piece,
    ReasoningPiece,
    TextPiece,
    merged,
    started,
    whole_answers,
)
from tests.pieces_kit import PLAIN, Source, ending

CLOCK = {"type": "function", "name": "clock", "description": "Tells the time.", "strict": False, "parameters": {}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [CLOCK | {"name": "close"}]}
OURS = {"turn_id": "t1", "version": 4, "session": "s"}
SPANS_JSON = [{"start": 0, "end": 2, "version": 3}, {"start": 2, "end": 4, "version": 4}]
RICH = Message(
    role="assistant",
    content="I look.",
    reasoning="Size matters.",
    tool_calls=(
        ToolCall(id="call_a", name="clock", arguments='{"at": "Größe"}'),
        ToolCall(id="call_b", name="agents__close", arguments="{}"),
    ),
)


def _writer(**fields: Any) -> ResponsesWriter:
    body = {"model": "tiny", "input": "hi", "tools": [CLOCK, AGENTS, {"type": "web_search"}]} | fields
    asked = responses.read(body, {}, ServingConfig(served_name="tiny"))
    return asked.writer(AnswerFacts(turn_ids=(TurnId("t1"),), model="tiny", created=5, session="s"))


def _text(text: str, version: int = 4) -> TextPiece:
    return TextPiece(text=text, version=version)


def _call(index: int, arguments: str = "", **first: str) -> CallPiece:
    return CallPiece(index=index, version=4, arguments=arguments, **first)


RICH_PIECES: list[Piece] = [
    IdlePiece(version=0),
    ReasoningPiece(text="Size ", version=3),
    ReasoningPiece(text="matters.", version=3),
    _text(""),
    _text("I "),
    IdlePiece(version=4),
    _text("look."),
    _call(0, id="call_a", name="clock"),
    _call(0, '{"at": "Gr'),
    _text(""),
    _call(0, 'öße"}'),
    _call(1, id="call_b", name="agents__close"),
    _call(1, "{}"),
    ending(RICH),
]
PLAIN_PIECES: list[Piece] = [_text("a", 3), _text("b"), ending(PLAIN)]


def _raw(source: Source, writer: ResponsesWriter) -> tuple[list[bytes], Exception | None]:
    async def collect() -> tuple[list[bytes], Exception | None]:
        got: list[bytes] = []
        try:
            async for event in writer.stream(await started(merged([source.pieces()]))):
                got.append(event)
        except Exception as error:
            return got, error
        return got, None

    return asyncio.run(collect())


def _stream(
    pieces: list[Piece], error: Exception | None = None, **fields: Any
) -> tuple[list[dict[str, Any]], Exception | None]:
    raw, failure = _raw(Source(*pieces, error=error), _writer(**fields))
    events = []
    for event in raw:
        name, data, *rest = event.decode().split("\n")
        assert rest == ["", ""] and name.startswith("event: ") and data.startswith("data: ")
        events.append(json.loads(data.removeprefix("data: ")))
        assert events[-1]["type"] == name.removeprefix("event: ")
    return events, failure


def _whole(pieces: list[Piece], **fields: Any) -> dict[str, Any]:
    async def answer() -> dict[str, Any]:
        return _writer(**fields).whole(await whole_answers(await started(merged([Source(*pieces).pieces()])), 1))

    return asyncio.run(answer())


def _short(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


BEGUN = ["created", "in_progress"]
MESSAGE_BEGUN = ["output_item.added", "content_part.added"]
MESSAGE_DONE = ["output_text.done", "content_part.done", "output_item.done"]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def test_a_stream_of_text_has_its_events_in_order_and_numbered() -> None:
    events, error = _stream(PLAIN_PIECES)
    assert error is None
    deltas = ["output_text.delta", "output_text.delta"]
    assert _short(events) == [*BEGUN, *MESSAGE_BEGUN, *deltas, *MESSAGE_DONE, "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["delta"] for event in events if "delta" in event] == ["a", "b"]
    assert {event["item_id"] for event in events if "item_id" in event} == {"msg_t1_0"}


def test_a_rich_stream_has_one_open_item_at_a_time() -> None:
    events, _ = _stream(RICH_PIECES)
    reasoning = ["output_item.added", "content_part.added", *["reasoning_text.delta"] * 2]
    reasoning += ["reasoning_text.done", "content_part.done", "output_item.done"]
    said = [*MESSAGE_BEGUN, "output_text.delta", "in_progress", "output_text.delta", *MESSAGE_DONE]
    clock = [CALL[0], CALL[1], *CALL[1:]]
    assert _short(events) == [*BEGUN, "in_progress", *reasoning, *said, *clock, *CALL, "completed"]
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places) and set(places) == {0, 1, 2, 3}


def test_an_item_is_added_empty_and_done_as_the_last_event_shows_it() -> None:
    events, _ = _stream(RICH_PIECES)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], "", ""]
    assert {item["status"] for item in added} == {"in_progress"}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [item["id"] for item in done] == [item["id"] for item in added]


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (PLAIN_PIECES, None),
        (RICH_PIECES, None),
        ([ending(Message(role="assistant"))], None),
        ([_text("a"), ending(PLAIN, FinishReason.LENGTH)], None),
        ([_text("a")], overloaded()),
        ([_text("a")], KeyError("x")),
    ],
)
def test_every_event_is_one_that_the_client_knows(pieces: list[Piece], error: Exception | None) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events, _ = _stream(pieces, error, metadata={"a": "b"}, instructions="Be kind.", tool_choice="required")
    for event in events:
        read = adapter.validate_python(event)
        assert read.type == event["type"]
        # Only `clawrl` and the name of a called function are beyond the client's types.
        unknown = set(read.model_extra or {}) | set(getattr(read, "response", read).model_extra or {})
        assert unknown <= {"clawrl", "name"}


def test_the_last_event_carries_the_same_response_as_the_whole_answer() -> None:
    for pieces in (PLAIN_PIECES, RICH_PIECES, [ending(Message(role="assistant"))]):
        assert _stream(pieces)[0][-1]["response"] == _whole(pieces)


def test_the_whole_answer_is_one_object() -> None:
    fields = {"metadata": {"a": "b"}, "instructions": "Be kind.", "temperature": 0.5, "max_output_tokens": 9}
    body = _whole(RICH_PIECES, **fields, tool_choice={"type": "function", "name": "clock"})
    Response.model_validate(body)
    assert body == {
        "id": "resp_t1",
        "object": "response",
        "created_at": 5,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "tiny",
        "output": [
            {
                "id": "rs_t1_0",
                "type": "reasoning",
                "status": "completed",
                "summary": [{"type": "summary_text", "text": "Size matters."}],
                "content": [{"type": "reasoning_text", "text": "Size matters."}],
            },
            {
                "id": "msg_t1_1",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {
                "id": "fc_t1_2",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_a",
                "name": "clock",
                "arguments": '{"at": "Größe"}',
            },
            {
                "id": "fc_t1_3",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_b",
                "namespace": "agents",
                "name": "close",
                "arguments": "{}",
            },
        ],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 11,
        },
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 1.0,
        "tools": [CLOCK, AGENTS],
        "tool_choice": {"type": "function", "name": "clock"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "clawrl": OURS | {"spans": SPANS_JSON},
    }


def test_a_response_in_progress_tells_its_version_and_the_items_so_far() -> None:
    events, _ = _stream(RICH_PIECES)
    waits = [event["response"] for event in events if event["type"] in ("response.created", "response.in_progress")]
    assert [(w["status"], w["clawrl"]["version"], len(w["output"])) for w in waits] == [
        ("in_progress", 0, 0),
        ("in_progress", 0, 0),
        ("in_progress", 0, 0),
        ("in_progress", 4, 1),
    ]
    assert all("spans" not in w["clawrl"] and w["usage"] is None for w in waits)


def test_an_answer_without_anything_is_one_empty_message() -> None:
    events, _ = _stream([ending(Message(role="assistant"))])
    assert _short(events) == [*BEGUN, *MESSAGE_BEGUN, *MESSAGE_DONE, "completed"]
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": "", "annotations": []}]


def test_an_answer_of_calls_only_has_no_message() -> None:
    calls = Message(role="assistant", tool_calls=RICH.tool_calls[:1])
    pieces = [_call(0, id="call_a", name="clock"), _call(0, '{"at": "Größe"}'), ending(calls)]
    assert [item["type"] for item in _whole(pieces)["output"]] == ["function_call"]
    assert _stream(pieces)[0][-1]["response"] == _whole(pieces)


def test_an_answer_cut_by_its_length_is_incomplete_and_so_is_its_last_item() -> None:
    pieces = [*RICH_PIECES[:7], ending(Message(role="assistant", content="I look.", reasoning="Size matters."))]
    pieces[-1] = ending(pieces[-1].message, FinishReason.LENGTH)  # type: ignore[union-attr]
    events, error = _stream(pieces)
    response = events[-1]["response"]
    assert error is None and events[-1]["type"] == "response.incomplete" and response == _whole(pieces)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (overloaded(), "rate_limit_exceeded"),
        (context_overflow(8, 9), "context_length_exceeded"),
        (KeyError("secret"), "server_error"),
    ],
)
def test_a_failure_in_the_middle_is_a_failed_response_and_then_a_break(failure: Exception, code: str) -> None:
    events, error = _stream(RICH_PIECES[:7], failure)
    assert error is failure
    response = events[-1]["response"]
    assert (events[-1]["type"], events[-1]["sequence_number"]) == ("response.failed", len(events) - 1)
    assert (response["status"], response["error"]["code"]) == ("failed", code)
    assert response["error"]["message"] and "secret" not in response["error"]["message"]
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert not {"completed", "incomplete"} & set(_short(events))


def test_a_failure_before_the_first_piece_is_raised_before_any_byte() -> None:
    events, error = _stream([], overloaded())
    assert events == [] and isinstance(error, ApiError) and error.status == 429


@pytest.mark.parametrize("reason", [FinishReason.ABORTED, FinishReason.ERROR])
def test_an_aborted_or_failed_turn_never_looks_finished(reason: FinishReason) -> None:
    with pytest.raises(ValueError, match=reason.value):
        _whole([_text("a"), ending(PLAIN, reason)])
    events, error = _stream([_text("a"), ending(PLAIN, reason)])
    assert isinstance(error, ValueError) and events[-1]["type"] == "response.failed"


def test_closing_the_stream_closes_its_source() -> None:
    source = Source(*PLAIN_PIECES)

    async def leave() -> None:
        stream = _writer().stream(await started(merged([source.pieces()])))
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert source.closed

    asyncio.run(leave())


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (PLAIN_PIECES, PLAIN),
        (RICH_PIECES, RICH),
        (
            [_text("I "), *RICH_PIECES[7:11], _text("look."), ending(PLAIN)],
            Message(role="assistant", content="I look.", tool_calls=RICH.tool_calls[:1]),
        ),
    ],
)
def test_the_items_of_a_stream_sent_back_are_the_message_that_was_answered(
    pieces: list[Piece], message: Message
) -> None:
    items = _stream(pieces)[0][-1]["response"]["output"]
    for item in items:
        TypeAdapter(ResponseInputItem).validate_python(item)
    asked = responses.read(
        {"model": "tiny", "input": [{"role": "user", "content": "hi"}, *items, {"role": "user", "content": "go on"}]},
        {},
        ServingConfig(served_name="tiny"),
    )
    assert asked.request.messages[1] == message


def _client(handler: Callable[[httpx2.Request], httpx2.Response]) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(transport=httpx2.MockTransport(handler))
    return openai.OpenAI(base_url="http://here/v1", api_key="k", http_client=http, max_retries=0)


def _served(pieces: list[Piece], error: Exception | None = None) -> openai.OpenAI:
    """The real client, talking to the dialect without a network."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        asked = responses.read(body, dict(request.headers), ServingConfig(served_name="tiny"))
        writer = asked.writer(AnswerFacts(turn_ids=(TurnId("t1"),), model="tiny", created=5))
        if asked.request.stream:
            raw, _ = _raw(Source(*pieces, error=error), writer)
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"".join(raw))

        async def whole() -> dict[str, Any]:
            return writer.whole(await whole_answers(await started(merged([Source(*pieces).pieces()])), 1))

        return httpx2.Response(200, json=asyncio.run(whole()))

    return _client(answer)


def test_the_clients_own_helper_puts_a_stream_together_to_the_same_final_response() -> None:
    asked: Any = {"model": "tiny", "input": "hi", "tools": [CLOCK, AGENTS], "metadata": {"a": "b"}}
    client = _served(RICH_PIECES)
    snapshots = []
    with client.responses.stream(**asked) as stream:
        for event in stream:
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                snapshots.append(event.snapshot)  # type: ignore[union-attr]
        final = stream.get_final_response()
    assert snapshots == ["I ", "I look.", '{"at": "Gr', '{"at": "Größe"}', "{}"]
    assert final.to_dict() == client.responses.parse(**asked).to_dict()
    assert final.output_text == "I look."


def test_the_client_reads_a_response_that_was_not_streamed() -> None:
    response = _served(RICH_PIECES).responses.create(model="tiny", input="hi", tools=[CLOCK, AGENTS])  # type: ignore[list-item]
    assert response.output_text == "I look."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.usage is not None and response.usage.total_tokens == 11
    assert response.clawrl["turn_id"] == "t1"  # type: ignore[attr-defined]


def test_the_client_sees_a_failed_response() -> None:
    with _served([_text("a")], overloaded()).responses.create(model="tiny", input="hi", stream=True) as events:
        last = list(events)[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None and last.response.error.code == "rate_limit_exceeded"
