"""The answer as a message object and as events, held against the types and the reading of Anthropic's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from clawrl.messages import FinishReason, Message, ToolCall, TurnId
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.messages import error
from clawrl.serving.dialects.messages.content import parse_messages
from clawrl.serving.dialects.messages.response import MessagesWriter
from clawrl.serving.errors import overloaded
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
from clawrl.serving.sessions.canonical import canonical
from tests.pieces_kit import PLAIN, Source, ending

WRITER = MessagesWriter(AnswerFacts(turn_ids=(TurnId("t1"),), model="tiny", created=5, session="s"))
OURS = {"turn_id": "t1", "version": 4, "session": "s", "spans": [
    {"start": 0, "end": 2, "version": 3}, {"start": 2, "end": 4, "version": 4}]}  # fmt: skip
USAGE = {"input_tokens": 7, "output_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
RICH = Message(
    role="assistant",
    content="I look.",
    reasoning="Size matters.",
    tool_calls=(
        ToolCall(id="call_a", name="Look", arguments='{"at": "Größe", "deep": 2.5}'),
        ToolCall(id="call_b", name="Wait", arguments="{}"),
    ),
)
RICH_BLOCKS = [
    {"type": "thinking", "thinking": "Size matters.", "signature": "clawrl"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "call_a", "name": "Look", "input": {"at": "Größe", "deep": 2.5}},
    {"type": "tool_use", "id": "call_b", "name": "Wait", "input": {}},
]


def _text(text: str) -> TextPiece:
    return TextPiece(text=text, version=3)


def _think(text: str) -> ReasoningPiece:
    return ReasoningPiece(text=text, version=3)


def _call(index: int, arguments: str = "", **first: str) -> CallPiece:
    return CallPiece(index=index, version=3, arguments=arguments, **first)


RICH_PIECES = (
    _think("Size "),
    _think("matters."),
    _text(""),
    _text("I look"),
    IdlePiece(version=3),
    _text("."),
    _call(0, id="call_a", name="Look"),
    _call(0, '{"at": "Grö'),
    _call(0, 'ße", "deep": 2.5}'),
    _call(1, id="call_b", name="Wait"),
    _call(1, "{}"),
    ending(RICH),
)


def _raw(source: Source, writer: MessagesWriter = WRITER) -> tuple[bytes, Exception | None]:
    async def collect() -> tuple[bytes, Exception | None]:
        got = b""
        try:
            async for event in writer.stream(await started(merged([source.pieces()]))):
                got += event
        except Exception as raised:
            return got, raised
        return got, None

    got, raised = asyncio.run(collect())
    assert source.closed
    return got, raised


def _events(*pieces: Piece) -> list[dict[str, Any]]:
    raw, raised = _raw(Source(*pieces))
    assert raised is None
    return _parsed(raw)


def _parsed(raw: bytes) -> list[dict[str, Any]]:
    events = []
    for event in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _whole(*pieces: Piece) -> dict[str, Any]:
    async def answer() -> dict[str, Any]:
        return WRITER.whole(await whole_answers(await started(merged([Source(*pieces).pieces()])), 1))

    return asyncio.run(answer())


def _client(status: int, content: bytes, kind: str) -> anthropic.Anthropic:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind}, content=content)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return anthropic.Anthropic(api_key="k", base_url="http://here", http_client=http, max_retries=0)


def _streamed_to_the_client(raw: bytes) -> anthropic.types.Message:
    client = _client(200, raw, "text/event-stream")
    with client.messages.stream(model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        return stream.get_final_message()


def _sent_to_the_client(body: dict[str, Any], status: int = 200) -> anthropic.types.Message:
    client = _client(status, json.dumps(body).encode(), "application/json")
    return client.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}])


def _blocks_of(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [block.to_dict() for block in message.content]


def test_a_stream_has_its_events_in_order() -> None:
    started_block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert _events(_text("a"), _text("b"), ending(PLAIN)) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_t1",
                "type": "message",
                "role": "assistant",
                "model": "tiny",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": dict.fromkeys(USAGE, 0),
                "clawrl": {"turn_id": "t1", "version": 3, "session": "s"},
            },
        },
        {"type": "ping"},
        started_block,
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": USAGE,
            "clawrl": OURS,
        },
        {"type": "message_stop"},
    ]


def test_blocks_follow_each_other_and_reasoning_ends_with_a_signature() -> None:
    told = []
    for event in _events(*RICH_PIECES)[2:-2]:
        inner = event.get("content_block") or event.get("delta") or {}
        told.append((event["type"].removeprefix("content_block_"), event.get("index"), inner.get("type")))
    assert told == [
        ("start", 0, "thinking"),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "signature_delta"),
        ("stop", 0, None),
        ("start", 1, "text"),
        ("delta", 1, "text_delta"),
        ("ping", None, None),
        ("delta", 1, "text_delta"),
        ("stop", 1, None),
        ("start", 2, "tool_use"),
        ("delta", 2, "input_json_delta"),
        ("delta", 2, "input_json_delta"),
        ("stop", 2, None),
        ("start", 3, "tool_use"),
        ("delta", 3, "input_json_delta"),
        ("stop", 3, None),
    ]


@pytest.mark.parametrize("pieces", [RICH_PIECES, (_text("ab"), ending(PLAIN))])
def test_every_event_but_a_ping_is_one_of_the_client_s_types(pieces: tuple[Piece, ...]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    events = [event for event in _events(*pieces) if event["type"] != "ping"]
    assert [adapter.validate_python(event).type for event in events] == [event["type"] for event in events]


def test_the_client_puts_the_stream_together_again() -> None:
    raw, _ = _raw(Source(*RICH_PIECES))
    message = _streamed_to_the_client(raw)
    assert _blocks_of(message) == RICH_BLOCKS
    assert (message.id, message.stop_reason) == ("msg_t1", "tool_use")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 4)


def test_an_answer_that_is_not_streamed_is_one_message() -> None:
    assert _whole(*RICH_PIECES) == {
        "id": "msg_t1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": RICH_BLOCKS,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
        "clawrl": OURS,
    }


def test_the_client_reads_a_whole_answer_as_it_reads_the_stream() -> None:
    whole = _sent_to_the_client(_whole(*RICH_PIECES))
    anthropic.types.Message.model_validate(_whole(*RICH_PIECES))
    raw, _ = _raw(Source(*RICH_PIECES))
    assert _blocks_of(whole) == _blocks_of(_streamed_to_the_client(raw))
    assert whole.usage.to_dict() == USAGE


def test_an_answer_that_the_client_sends_back_is_the_one_that_was_given() -> None:
    raw, _ = _raw(Source(*RICH_PIECES))
    replay = {"role": "assistant", "content": _blocks_of(_streamed_to_the_client(raw))}
    (message,) = parse_messages({"messages": [replay]})
    assert canonical(message) == canonical(RICH)
    assert message.reasoning == RICH.reasoning


def test_text_around_a_call_comes_back_as_one_text() -> None:
    said = Message(role="assistant", content="before after", tool_calls=RICH.tool_calls[1:])
    pieces = (_text("before "), _call(0, id="call_b", name="Wait"), _text("after"), ending(said))
    raw, _ = _raw(Source(*pieces))
    blocks = _blocks_of(_streamed_to_the_client(raw))
    assert [block["type"] for block in blocks] == ["text", "tool_use", "text"]
    (message,) = parse_messages({"messages": [{"role": "assistant", "content": blocks}]})
    assert canonical(message) == canonical(said)


@pytest.mark.parametrize(
    ("message", "reason", "wire"),
    [
        (PLAIN, FinishReason.STOP, "end_turn"),
        (RICH, FinishReason.STOP, "tool_use"),
        (PLAIN, FinishReason.LENGTH, "max_tokens"),
        (RICH, FinishReason.LENGTH, "max_tokens"),
    ],
)
def test_streams_and_whole_answers_end_for_the_same_reason(message: Message, reason: FinishReason, wire: str) -> None:
    finish = ending(message, reason)
    assert _whole(_text("a"), finish)["stop_reason"] == wire
    (delta,) = [event for event in _events(_text("a"), finish) if event["type"] == "message_delta"]
    assert delta["delta"] == {"stop_reason": wire, "stop_sequence": None}


@pytest.mark.parametrize("reason", [FinishReason.ABORTED, FinishReason.ERROR])
def test_an_aborted_or_failed_turn_never_looks_finished(reason: FinishReason) -> None:
    with pytest.raises(ValueError, match=reason.value):
        _whole(_text("a"), ending(PLAIN, reason))
    raw, raised = _raw(Source(_text("a"), ending(PLAIN, reason)))
    types = [event["type"] for event in _parsed(raw)]
    assert isinstance(raised, ValueError) and types[-1] == "error"
    assert not {"content_block_stop", "message_delta", "message_stop"} & set(types)


@pytest.mark.parametrize(
    ("failure", "kind"), [(overloaded(), "rate_limit_error"), (RuntimeError("secret"), "api_error")]
)
def test_a_failure_after_the_first_byte_is_an_error_event_and_is_raised(failure: Exception, kind: str) -> None:
    raw, raised = _raw(Source(_text("a"), error=failure))
    last = _parsed(raw)[-1]
    assert raised is failure
    assert (last["type"], last["error"]["type"]) == ("error", kind)
    assert b"secret" not in raw and b"message_stop" not in raw
    with pytest.raises(anthropic.APIStatusError) as caught:
        _streamed_to_the_client(raw)
    assert caught.value.body == last


def test_the_client_takes_a_refusal_for_what_it_is() -> None:
    with pytest.raises(anthropic.RateLimitError) as caught:
        _sent_to_the_client(error(overloaded()), status=429)
    assert caught.value.type == "rate_limit_error"


def test_a_sign_of_life_may_come_before_anything_else() -> None:
    types = [event["type"] for event in _events(IdlePiece(version=0), _text("ab"), ending(PLAIN))]
    assert types[:4] == ["message_start", "ping", "ping", "content_block_start"]


def test_an_empty_answer_has_no_block() -> None:
    empty = ending(Message(role="assistant"))
    assert [event["type"] for event in _events(empty)] == ["message_start", "ping", "message_delta", "message_stop"]
    assert _whole(empty)["content"] == []


def test_a_call_whose_arguments_are_no_object_is_never_shown() -> None:
    bad = Message(role="assistant", tool_calls=(ToolCall(id="c", name="Look", arguments="[1]"),))
    with pytest.raises(ValueError, match="no JSON object"):
        _whole(ending(bad))


def test_a_session_that_was_not_named_is_not_shown() -> None:
    anonymous = MessagesWriter(AnswerFacts(turn_ids=(TurnId("t1"),), model="tiny", created=5))
    raw, _ = _raw(Source(_text("ab"), ending(PLAIN)), anonymous)
    assert b'"session"' not in raw and b'"turn_id"' in raw


def test_leaving_the_stream_closes_its_source() -> None:
    source = Source(_text("a"), _text("b"), ending(PLAIN))

    async def leave() -> None:
        stream = WRITER.stream(await started(merged([source.pieces()])))
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert source.closed

    asyncio.run(leave())
