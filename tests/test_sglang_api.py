"""SGLang's HTTP interface from our side: events, refusals, and a server that is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from clawrl.engine.sglang_api import Refusal, SglangApi, SglangError


def events(*bodies: Any, end: str = "data: [DONE]\n\n") -> bytes:
    return "".join(f"data: {json.dumps(body, ensure_ascii=False)}\n\n" for body in bodies).encode() + end.encode()


def with_server(answer: Callable[[httpx.Request], httpx.Response], story: Callable[[SglangApi], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        api = SglangApi("http://127.0.0.1:1", "key")
        api._http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://127.0.0.1:1")
        try:
            return await story(api)
        finally:
            await api.close()

    return asyncio.run(run())


def replied(content: bytes, status: int = 200) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(status, content=content)


async def streamed(api: SglangApi) -> list[Any]:
    return [event async for event in api.stream({"input_ids": [1]})]


def test_an_answer_may_hold_every_character_that_others_take_for_the_end_of_a_line() -> None:
    bodies = [{"text": f"a{character}b"} for character in "\u2028\u2029\u0085\x0b\x0c\x1c\r\n"]
    assert with_server(replied(events(*bodies)), streamed) == bodies


def test_events_may_come_in_any_pieces() -> None:
    bodies = [{"text": "größer"}, {"text": "\u2028"}, {"n": 3}]
    whole = events(*bodies)

    async def parts() -> Any:
        for at in range(0, len(whole), 3):
            yield whole[at : at + 3]

    assert with_server(lambda request: httpx.Response(200, content=parts()), streamed) == bodies


def test_an_event_that_breaks_off_is_an_error_of_the_server() -> None:
    with pytest.raises(SglangError, match="middle of an event"):
        with_server(replied(b'data: {"text": "a'), streamed)


def test_an_error_in_the_stream_or_before_it_is_a_refusal_in_its_words() -> None:
    refused = {"error": {"message": "no such schema"}}
    with pytest.raises(Refusal, match="no such schema"):
        with_server(replied(events(refused)), streamed)
    with pytest.raises(Refusal, match="no such schema"):
        with_server(replied(json.dumps(refused).encode(), 400), streamed)


def test_a_command_that_did_not_succeed_is_a_refusal_and_a_failing_server_is_not() -> None:
    failed = json.dumps({"success": False, "message": "busy"}).encode()
    with pytest.raises(Refusal, match="flush_cache: busy"):
        with_server(replied(failed), lambda api: api.control("flush_cache"))
    with pytest.raises(SglangError) as broken:
        with_server(replied(b"oops", 500), lambda api: api.control("flush_cache"))
    assert not isinstance(broken.value, Refusal) and "oops" in str(broken.value)


def test_a_command_without_a_body_in_its_answer_is_done() -> None:
    assert with_server(replied(b""), lambda api: api.control("abort_request", {"rid": "x"})) is None


def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    for story in (streamed, lambda api: api.info()):
        with pytest.raises(SglangError, match="cannot be reached"):
            with_server(gone, story)
