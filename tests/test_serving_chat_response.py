"""The shape of answers, chunk by chunk, and of streams that end badly."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from clawrl.messages import FinishReason, TurnId, VersionSpan
from clawrl.serving.chat_response import ChatReply, TokenLogprob, Usage, sse
from clawrl.serving.chat_stream import FinishPiece, Piece, TextPiece, event_stream, started, whole_answer
from clawrl.serving.errors import ApiError, overloaded

REPLY = ChatReply(turn_id=TurnId("t1"), model="tiny", created=5, session="s")
SPANS = (VersionSpan(start=0, end=2, version=3), VersionSpan(start=2, end=4, version=4))
FINISH = FinishPiece(
    finish_reason=FinishReason.STOP, spans=SPANS, version=4, usage=Usage(prompt_tokens=7, completion_tokens=4)
)
USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
SPANS_JSON = [{"start": 0, "end": 2, "version": 3}, {"start": 2, "end": 4, "version": 4}]


class Source:
    """Pieces in order, then an error or a silent end; remembers that it was closed."""

    def __init__(self, *pieces: Piece, error: Exception | None = None) -> None:
        self.given, self.error, self.closed = pieces, error, False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        try:
            for piece in self.given:
                yield piece
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def _stream(source: Source, include_usage: bool = False) -> tuple[list[Any], BaseException | None]:
    async def collect() -> tuple[list[Any], BaseException | None]:
        got: list[Any] = []
        try:
            async for raw in event_stream(REPLY, await started(source.pieces()), include_usage=include_usage):
                assert raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.count(b"\n") == 2
                data = raw[len(b"data: ") : -2].decode()
                got.append(data if data == "[DONE]" else json.loads(data))
        except Exception as error:
            return got, error
        return got, None

    return asyncio.run(collect())


def _text(text: str, version: int = 3) -> TextPiece:
    return TextPiece(text=text, version=version)


def test_a_stream_is_role_then_text_then_finish_then_done() -> None:
    events, error = _stream(Source(_text("a\n"), _text("语", 4), FINISH))
    assert error is None and events.pop() == "[DONE]"
    assert [e["choices"][0]["delta"] for e in events] == [
        {"role": "assistant", "content": ""},
        {"content": "a\n"},
        {"content": "语"},
        {},
    ]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None, None, None, "stop"]
    assert [e["system_fingerprint"] for e in events] == ["v3", "v3", "v4", "v4"]
    assert {(e["id"], e["object"], e["created"], e["model"]) for e in events} == {
        ("chatcmpl-t1", "chat.completion.chunk", 5, "tiny")
    }
    assert events[0]["clawrl"] == {"turn_id": "t1", "version": 3, "session": "s"}
    assert events[-1]["clawrl"] == {"turn_id": "t1", "version": 4, "session": "s", "spans": SPANS_JSON}


def test_usage_has_a_chunk_of_its_own_when_asked_for() -> None:
    events, _ = _stream(Source(_text("a"), FINISH), include_usage=True)
    finish, usage, done = events[-3:]
    assert "usage" not in finish and finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == [] and usage["usage"] == USAGE
    assert done == "[DONE]"


def test_usage_rides_on_the_finish_chunk_when_not_asked_for() -> None:
    events, _ = _stream(Source(_text("a"), FINISH))
    assert events[-2]["usage"] == USAGE and events[-2]["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in e for e in events[:-2])


def test_an_answer_without_text_still_has_a_role_and_a_finish() -> None:
    events, _ = _stream(Source(FINISH))
    assert [e["choices"][0]["delta"] for e in events[:-1]] == [{"role": "assistant", "content": ""}, {}]


def test_an_empty_piece_is_an_empty_delta() -> None:
    events, _ = _stream(Source(_text(""), FINISH))
    assert events[1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": None}


def test_logprobs_travel_with_their_text() -> None:
    entry = TokenLogprob(token="é", logprob=-0.5)
    held = TextPiece(text="", version=3, logprobs=(entry,))
    events, _ = _stream(Source(held, FINISH))
    content = events[1]["choices"][0]["logprobs"]["content"]
    assert content == [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}]


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30])
def test_a_logprob_that_json_cannot_say_has_a_stand_in(value: float) -> None:
    entry = TokenLogprob(token="\ufffd", logprob=value).as_json()
    assert entry["logprob"] == -9999.0 and entry["bytes"] is None


def test_an_event_that_json_cannot_say_is_refused_rather_than_sent() -> None:
    with pytest.raises(ValueError):
        sse({"x": math.nan})


@pytest.mark.parametrize(
    ("source", "status", "code"),
    [
        (Source(_text("a"), error=overloaded()), ApiError, "rate_limit_exceeded"),
        (Source(_text("a"), error=KeyError("secret")), KeyError, "internal_error"),
        (Source(_text("a")), ApiError, "internal_error"),
    ],
)
def test_a_failure_in_the_middle_is_an_error_event_and_then_a_break(
    source: Source, status: type[Exception], code: str
) -> None:
    events, error = _stream(source)
    assert isinstance(error, status)
    assert events[-1]["error"]["code"] == code and "secret" not in events[-1]["error"]["message"]
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])
    assert "[DONE]" not in events


def test_a_failure_before_the_first_piece_is_raised_before_any_byte() -> None:
    events, error = _stream(Source(error=overloaded()))
    assert events == [] and isinstance(error, ApiError) and error.status == 429
    events, error = _stream(Source())
    assert events == [] and isinstance(error, ApiError) and error.status == 500


@pytest.mark.parametrize("reason", [FinishReason.ABORTED, FinishReason.ERROR])
def test_an_aborted_or_failed_turn_never_looks_finished(reason: FinishReason) -> None:
    with pytest.raises(ValueError, match=reason.value):
        REPLY.completion("a", reason, SPANS, 4, FINISH.usage)
    bad = FinishPiece(finish_reason=reason, spans=SPANS, version=4, usage=FINISH.usage)
    events, error = _stream(Source(_text("a"), bad))
    assert error is not None and "[DONE]" not in events and "error" in events[-1]


def test_closing_the_stream_closes_its_source() -> None:
    source = Source(_text("a"), _text("b"), FINISH)

    async def leave() -> None:
        stream: Any = event_stream(REPLY, await started(source.pieces()), include_usage=False)
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert source.closed

    asyncio.run(leave())


def _answer(source: Source, logprobs: bool = False) -> dict[str, Any]:
    return asyncio.run(whole_answer(REPLY, source.pieces(), logprobs=logprobs))


def test_an_answer_that_is_not_streamed_is_one_object() -> None:
    source = Source(_text("a "), _text("b", 4), FINISH)
    assert _answer(source) == {
        "id": "chatcmpl-t1",
        "object": "chat.completion",
        "created": 5,
        "model": "tiny",
        "system_fingerprint": "v4",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a b"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "clawrl": {"turn_id": "t1", "version": 4, "session": "s", "spans": SPANS_JSON},
    }
    assert source.closed


def test_an_answer_that_is_not_streamed_carries_its_logprobs_in_order() -> None:
    one, two = TokenLogprob(token="a", logprob=-1.0), TokenLogprob(token="b", logprob=-2.0)
    pieces = (TextPiece(text="a", version=3, logprobs=(one,)), TextPiece(text="b", version=3, logprobs=(two,)), FINISH)
    content = _answer(Source(*pieces), logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "b"]


def test_a_session_that_was_not_named_is_not_shown() -> None:
    anonymous = ChatReply(turn_id=TurnId("t1"), model="tiny", created=5)
    assert "session" not in anonymous.role_chunk(1)["clawrl"]


def test_a_failure_of_an_answer_that_is_not_streamed_is_raised() -> None:
    for source in (Source(_text("a"), error=overloaded()), Source(_text("a")), Source()):
        with pytest.raises(ApiError):
            _answer(source)
