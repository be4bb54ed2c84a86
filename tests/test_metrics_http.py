"""Requests as the middleware counts them, around an application that does what applications do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from clawrl.actors.http_errors import install_error_handlers
from clawrl.metrics.http import DIALECTS, RequestMeter
from clawrl.metrics.sink import Buffer, totals
from clawrl.serving import errors
from clawrl.serving.sse import ending_in_error


def _ask(app: Any, path: str = "/v1/chat/completions", kind: str = "http") -> tuple[dict[tuple[str, ...], float], list]:
    sink, sent = Buffer(), []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def run() -> None:
        await RequestMeter(app, sink=lambda: sink)({"type": kind, "path": path}, receive, send)

    try:
        asyncio.run(run())
    except (RuntimeError, asyncio.CancelledError):
        sent.append({"type": "raised"})
    return totals(sink.drain()), sent


def _app(status: int, *, parts: int = 1, breaks: type[BaseException] | None = None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status})
        for part in range(parts):
            await send(
                {"type": "http.response.body", "body": b"x", "more_body": part < parts - 1 or breaks is not None}
            )
        if breaks is not None:
            raise breaks("broken")

    return app


@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/v1/chat/completions", "chat"), ("/v1/responses", "responses"), ("/v1/messages", "messages")],
)
def test_each_dialect_is_counted_as_itself_once_however_many_parts_it_is_sent_in(path: str, dialect: str) -> None:
    told, sent = _ask(_app(200, parts=5), path)
    assert told == {("requests", dialect, "answered"): 1, ("request_seconds", dialect): 1}
    assert len(sent) == 6, "everything is passed on"


@pytest.mark.parametrize(
    ("app", "outcome", "timed"),
    [
        (_app(401), "refused", False),
        (_app(429), "refused", False),
        (_app(502), "failed", True),
        (_app(200, breaks=RuntimeError), "failed", True),
        (_app(200, breaks=asyncio.CancelledError), "cancelled", True),
    ],
    ids=["401", "429", "502", "broken", "gone"],
)
def test_how_a_request_ended_is_told(app: Any, outcome: str, timed: bool) -> None:
    told, _ = _ask(app)
    assert told == {("requests", "chat", outcome): 1} | ({("request_seconds", "chat"): 1} if timed else {})


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_stream_that_ends_in_an_error_after_its_200_has_failed(dialect: str) -> None:
    """Through all that stands between the middleware and the stream, where an error could be taken for an end."""
    (path,) = [path for path, name in DIALECTS.items() if name == dialect]
    sink, sent, asked = Buffer(), [], []
    api = FastAPI()
    api.add_middleware(RequestMeter, sink=lambda: sink)
    install_error_handlers(api)

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"
        raise errors.unavailable("gone")

    @api.post(path)
    async def answer() -> StreamingResponse:
        return StreamingResponse(ending_in_error(events(), lambda error: b"data: the error\n\n"))

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        if asked:
            await asyncio.sleep(30)
        asked.append(True)
        return {"type": "http.request"}

    async def run() -> None:
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
        with pytest.raises(Exception, match=r"already started|gone"):
            await api(scope | {"http_version": "1.1", "scheme": "http"}, receive, send)  # type: ignore[arg-type]

    asyncio.run(run())
    assert sent[0]["status"] == 200 and sent[-1]["body"] == b"data: the error\n\n"
    assert totals(sink.drain()) == {("requests", dialect, "failed"): 1, ("request_seconds", dialect): 1}


def test_a_client_that_left_is_seen_also_where_the_application_ends_quietly() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})

    assert ("requests", "chat", "cancelled") in _ask(app)[0]


def test_other_paths_and_lifespans_are_none_of_its_business() -> None:
    assert _ask(_app(200), "/healthz")[0] == {} and _ask(_app(200), "/v1/messages/count_tokens")[0] == {}
    assert _ask(_app(200), kind="lifespan")[0] == {}
