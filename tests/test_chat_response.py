"""The shape of answers, chunk by chunk, and of streams that end badly."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from clawrl.messages import FinishReason, Message, ToolCall, TurnId, VersionSpan
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.chat.response import ChatWriter, message_json
from clawrl.serving.errors import ApiError, overloaded
from clawrl.serving.pieces import (
    CallPiece,
    FinishPiece,
    IdlePiece,
    Piece,
    ReasoningPiece,
    Started,
    TextPiece,
    TokenLogprob,
    Usage,
    alive,
    merged,
    started,
    whole_answers,
)
from clawrl.serving.sse import sse
from tests.pieces_kit import Source

FACTS = AnswerFacts(turn_ids=(TurnId("t1"),), model="tiny", created=5, session="s")
TWO = replace(FACTS, turn_ids=(TurnId("t1"), TurnId("t2")))
SPANS = (VersionSpan(start=0, end=2, version=3), VersionSpan(start=2, end=4, version=4))
FINISH = FinishPiece(
    finish_reason=FinishReason.STOP,
    spans=SPANS,
    version=4,
    usage=Usage(prompt_tokens=7, completion_tokens=4),
    message=Message(role="assistant", content="ab"),
)
CALLS = (
    ToolCall(id="call_a", name="look", arguments='{"at": "Größe"}'),
    ToolCall(id="call_b", name="wait", arguments="{}"),
)
CALLED = replace(FINISH, message=Message(role="assistant", reasoning="hm", tool_calls=CALLS))
USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
SPANS_JSON = [{"start": 0, "end": 2, "version": 3}, {"start": 2, "end": 4, "version": 4}]


class Script:
    """The pieces of several answers in this very order; remembers that it was closed."""

    def __init__(self, *numbered: tuple[int, Piece]) -> None:
        self.given, self.closed = numbered, False

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        try:
            for numbered in self.given:
                yield numbered
        finally:
            self.closed = True


async def _started(*sources: Source) -> Started:
    return await started(merged([alive(source.pieces(), 10.0) for source in sources]))


def _writer(facts: AnswerFacts = FACTS, *, include_usage: bool = False, logprobs: bool = False) -> ChatWriter:
    return ChatWriter(facts, include_usage=include_usage, logprobs=logprobs)


def _stream(source: Source | Script, writer: ChatWriter | None = None) -> tuple[list[Any], BaseException | None]:
    async def collect() -> tuple[list[Any], BaseException | None]:
        got: list[Any] = []
        try:
            pieces = await (_started(source) if isinstance(source, Source) else started(source.pieces()))
            async for raw in (writer or _writer()).stream(pieces):
                assert raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.count(b"\n") == 2
                data = raw[len(b"data: ") : -2].decode()
                got.append(data if data == "[DONE]" else json.loads(data))
        except Exception as error:
            return got, error
        return got, None

    return asyncio.run(collect())


def _chunks(source: Source | Script, writer: ChatWriter | None = None) -> list[dict[str, Any]]:
    """The events of a stream that ends well, each of them one that the client knows, without the last."""
    events, error = _stream(source, writer)
    assert error is None and events.pop() == "[DONE]" and source.closed
    for event in events:
        ChatCompletionChunk.model_validate(event)
    return events


def _deltas(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def _whole(*sources: Source, facts: AnswerFacts = FACTS, logprobs: bool = False) -> dict[str, Any]:
    async def answer() -> dict[str, Any]:
        return _writer(facts, logprobs=logprobs).whole(await whole_answers(await _started(*sources), len(sources)))

    whole = asyncio.run(answer())
    ChatCompletion.model_validate(whole)
    return whole


def _text(text: str, version: int = 3) -> TextPiece:
    return TextPiece(text=text, version=version)


def _call(index: int, arguments: str = "", **first: str) -> CallPiece:
    return CallPiece(index=index, version=3, arguments=arguments, **first)


def test_a_stream_is_role_then_text_then_finish_then_done() -> None:
    events = _chunks(Source(_text("a\n"), _text("语", 4), FINISH))
    assert _deltas(events) == [{"role": "assistant", "content": ""}, {"content": "a\n"}, {"content": "语"}, {}]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None, None, None, "stop"]
    assert [e["system_fingerprint"] for e in events] == ["v3", "v3", "v4", "v4"]
    assert {(e["id"], e["object"], e["created"], e["model"]) for e in events} == {
        ("chatcmpl-t1", "chat.completion.chunk", 5, "tiny")
    }
    assert events[0]["clawrl"] == {"turn_id": "t1", "version": 3, "session": "s"}
    assert events[-1]["clawrl"] == {"turn_id": "t1", "version": 4, "session": "s", "spans": SPANS_JSON}


def test_reasoning_has_a_field_of_its_own() -> None:
    events = _chunks(Source(ReasoningPiece(text="hm", version=3), _text("a"), FINISH))
    assert _deltas(events)[1:] == [{"reasoning_content": "hm"}, {"content": "a"}, {}]


def test_a_call_has_its_index_always_and_its_id_type_and_name_once_and_never_a_null() -> None:
    pieces = (_call(0, id="call_a", name="look"), _call(0, '{"at": "Grö'), _call(0, 'ße"}'))
    events = _chunks(Source(*pieces, _call(1, id="call_b", name="wait"), _call(1, "{}"), CALLED))
    assert _deltas(events)[1:] == [
        {"tool_calls": [call]}
        for call in (
            {"index": 0, "id": "call_a", "type": "function", "function": {"name": "look", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"at": "Grö'}},
            {"index": 0, "function": {"arguments": 'ße"}'}},
            {"index": 1, "id": "call_b", "type": "function", "function": {"name": "wait", "arguments": ""}},
            {"index": 1, "function": {"arguments": "{}"}},
        )
    ] + [{}]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_each_of_several_answers_has_its_role_its_turn_and_its_finish() -> None:
    later = replace(FINISH, usage=Usage(prompt_tokens=7, completion_tokens=9), version=5)
    script = ((1, _text("x")), (0, _text("a")), (1, later), (0, _text("b")), (0, FINISH))
    events = _chunks(Script(*script), _writer(TWO))
    told = [(e["choices"][0]["index"], e["choices"][0]["delta"], e["clawrl"]["turn_id"]) for e in events]
    assert told == [
        (1, {"role": "assistant", "content": ""}, "t2"),
        (1, {"content": "x"}, "t2"),
        (0, {"role": "assistant", "content": ""}, "t1"),
        (0, {"content": "a"}, "t1"),
        (1, {}, "t2"),
        (0, {"content": "b"}, "t1"),
        (0, {}, "t1"),
    ]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * 4 + ["stop", None, "stop"]
    assert {e["id"] for e in events} == {"chatcmpl-t1"}
    # The prompt is one and counts once; usage is whole with the last answer only.
    assert [e.get("usage") for e in events] == [None] * 6 + [
        {"prompt_tokens": 7, "completion_tokens": 13, "total_tokens": 20}
    ]
    last = _chunks(Script(*script), _writer(TWO, include_usage=True))[-1]
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 20 and last["system_fingerprint"] == "v5"


def test_usage_has_a_chunk_of_its_own_when_asked_for() -> None:
    *others, finish, usage = _chunks(Source(_text("a"), FINISH), _writer(include_usage=True))
    assert "usage" not in finish and finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == [] and usage["usage"] == USAGE
    assert not any("usage" in e for e in others)


def test_usage_rides_on_the_finish_chunk_when_not_asked_for() -> None:
    *others, finish = _chunks(Source(_text("a"), FINISH))
    assert finish["usage"] == USAGE and finish["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in e for e in others)


def test_an_answer_without_text_still_has_a_role_and_a_finish() -> None:
    assert _deltas(_chunks(Source(FINISH))) == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("piece", [IdlePiece(version=3), _text("")])
def test_a_piece_that_says_nothing_is_an_empty_delta(piece: Piece) -> None:
    events = _chunks(Source(_text("a"), piece, FINISH))
    assert events[2]["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]


def test_a_sign_of_life_may_come_before_anything_else() -> None:
    events = _chunks(Source(IdlePiece(version=0), IdlePiece(version=0), _text("a"), FINISH))
    assert _deltas(events) == [{"role": "assistant", "content": ""}, {}, {}, {"content": "a"}, {}]


@pytest.mark.parametrize("text", ["", "é"])
def test_logprobs_travel_with_their_text_for_a_client_that_asked(text: str) -> None:
    entry = TokenLogprob(token="é", logprob=-0.5)
    source = (TextPiece(text=text, version=3, logprobs=(entry,)), FINISH)
    choice = _chunks(Source(*source), _writer(logprobs=True))[1]["choices"][0]
    assert choice["delta"] == ({"content": text} if text else {})
    content = [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}]
    assert choice["logprobs"] == {"content": content, "refusal": None}
    assert "logprobs" not in _chunks(Source(*source))[1]["choices"][0]


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30])
def test_a_logprob_that_json_cannot_say_has_a_stand_in(value: float) -> None:
    entry = TokenLogprob(token="\ufffd", logprob=value).as_json()
    assert entry["logprob"] == -9999.0 and entry["bytes"] is None


def test_an_event_that_json_cannot_say_is_refused_rather_than_sent() -> None:
    with pytest.raises(ValueError):
        sse({"x": math.nan})


@pytest.mark.parametrize(
    ("message", "reason", "wire"),
    [
        (FINISH.message, FinishReason.STOP, "stop"),
        (FINISH.message, FinishReason.LENGTH, "length"),
        (CALLED.message, FinishReason.STOP, "tool_calls"),
        (CALLED.message, FinishReason.LENGTH, "length"),
    ],
)
def test_streams_and_whole_answers_end_for_the_same_reason(message: Message, reason: FinishReason, wire: str) -> None:
    finish = replace(FINISH, message=message, finish_reason=reason)
    assert _chunks(Source(_text("a"), finish))[-1]["choices"][0]["finish_reason"] == wire
    assert _whole(Source(_text("a"), finish))["choices"][0]["finish_reason"] == wire


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize(
    ("source", "status", "code"),
    [
        (Source(_text("a"), error=overloaded()), ApiError, "rate_limit_exceeded"),
        (Source(_text("a"), error=KeyError("secret")), KeyError, "internal_error"),
        (Source(_text("a")), ApiError, "internal_error"),
    ],
)
def test_a_failure_in_the_middle_is_an_error_event_and_then_a_break(
    source: Source, status: type[Exception], code: str, include_usage: bool
) -> None:
    events, error = _stream(source, _writer(include_usage=include_usage))
    assert isinstance(error, status) and source.closed
    assert events[-1]["error"]["code"] == code and "secret" not in events[-1]["error"]["message"]
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])
    assert "[DONE]" not in events


def test_the_failure_of_one_answer_ends_the_stream_of_all() -> None:
    async def ended() -> tuple[list[bytes], bool]:
        good, bad = Source(_text("a"), FINISH), Source(_text("x"), error=overloaded())
        events: list[bytes] = []
        with pytest.raises(ApiError, match="limit of waiting requests"):
            async for event in _writer(TWO).stream(await _started(good, bad)):
                events.append(event)
        return events, good.closed and bad.closed

    events, closed = asyncio.run(ended())
    assert closed and b"rate_limit_exceeded" in events[-1]
    assert not any(b"[DONE]" in event or b'"usage"' in event for event in events)


def test_a_failure_before_the_first_piece_is_raised_before_any_byte() -> None:
    events, error = _stream(Source(error=overloaded()))
    assert events == [] and isinstance(error, ApiError) and error.status == 429
    events, error = _stream(Source())
    assert events == [] and isinstance(error, ApiError) and error.status == 500


@pytest.mark.parametrize("reason", [FinishReason.ABORTED, FinishReason.ERROR])
def test_an_aborted_or_failed_turn_never_looks_finished(reason: FinishReason) -> None:
    bad = replace(FINISH, finish_reason=reason)
    with pytest.raises(ValueError, match=reason.value):
        _whole(Source(_text("a"), bad))
    events, error = _stream(Source(_text("a"), bad))
    assert error is not None and "[DONE]" not in events and "error" in events[-1]
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])


def test_closing_the_stream_closes_its_source() -> None:
    source = Source(_text("a"), _text("b"), FINISH)

    async def leave() -> None:
        stream = _writer().stream(await _started(source))
        await anext(stream)
        await anext(stream)
        assert not source.closed
        await stream.aclose()
        assert source.closed

    asyncio.run(leave())


def test_an_answer_that_is_not_streamed_is_one_object() -> None:
    source = Source(_text("a "), IdlePiece(version=3), _text("b", 4), FINISH)
    assert _whole(source) == {
        "id": "chatcmpl-t1",
        "object": "chat.completion",
        "created": 5,
        "model": "tiny",
        "system_fingerprint": "v4",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "clawrl": {"turn_id": "t1", "version": 4, "session": "s", "spans": SPANS_JSON},
    }
    assert source.closed


def test_several_answers_that_are_not_streamed_are_the_choices_of_one_object() -> None:
    other = replace(
        FINISH,
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=7, completion_tokens=9),
        version=5,
        message=Message(role="assistant", content="x"),
    )
    whole = _whole(Source(_text("a"), FINISH), Source(_text("x"), other), facts=TWO)
    told = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]]
    assert told == [(0, "ab", "stop"), (1, "x", "length")]
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 13, "total_tokens": 20}
    assert whole["clawrl"]["turn_ids"] == ["t1", "t2"] and whole["system_fingerprint"] == "v5"


def test_an_answer_that_is_not_streamed_carries_its_logprobs_in_order() -> None:
    one, two = TokenLogprob(token="a", logprob=-1.0), TokenLogprob(token="b", logprob=-2.0)
    pieces = (TextPiece(text="a", version=3, logprobs=(one,)), TextPiece(text="", version=3, logprobs=(two,)), FINISH)
    content = _whole(Source(*pieces), logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "b"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Message(role="assistant"), {"content": ""}),
        (Message(role="assistant", content="a", reasoning="hm"), {"content": "a", "reasoning_content": "hm"}),
        (
            Message(role="assistant", tool_calls=CALLS[:1]),
            {
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": "Größe"}'},
                    }
                ],
            },
        ),
    ],
)
def test_a_message_shows_what_it_has_and_nothing_else(message: Message, shown: dict[str, Any]) -> None:
    assert message_json(message) == {"role": "assistant"} | shown


def test_text_beside_a_call_is_content() -> None:
    assert message_json(Message(role="assistant", content="I look.", tool_calls=CALLS))["content"] == "I look."


def test_a_session_that_was_not_named_is_not_shown() -> None:
    anonymous = _writer(replace(FACTS, session=None))
    assert all("session" not in event["clawrl"] for event in _chunks(Source(_text("a"), FINISH), anonymous))


@pytest.mark.parametrize("source", [Source(_text("a"), error=overloaded()), Source(_text("a")), Source()])
def test_a_failure_of_an_answer_that_is_not_streamed_is_raised(source: Source) -> None:
    with pytest.raises(ApiError):
        _whole(source)
    assert source.closed
