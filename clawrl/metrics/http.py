"""Requests by dialect and outcome, seen around the whole application, what it refuses before reading included."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from clawrl.metrics import catalogue
from clawrl.metrics.sink import Sink

DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
_Receive = Callable[[], Awaitable[_Message]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class RequestMeter:
    """ASGI middleware. ``sink`` is asked for with each request: the application is made before it is known."""

    def __init__(self, app: _App, sink: Callable[[], Sink]) -> None:
        self._app = app
        self._sink = sink

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        dialect = DIALECTS.get(scope.get("path", "")) if scope["type"] == "http" else None
        if dialect is None:
            return await self._app(scope, receive, send)
        began, status, ended = time.perf_counter(), 0, False

        async def passed_on(message: _Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                ended = True
            await send(message)

        try:
            await self._app(scope, receive, passed_on)
        except Exception:
            status = 500
            ended = True
            raise
        finally:
            sink, outcome = self._sink(), _outcome(status, ended)
            sink.add(catalogue.REQUESTS, dialect=dialect, outcome=outcome)
            if outcome != "refused":
                sink.observe(catalogue.REQUEST_SECONDS, (time.perf_counter() - began,), dialect=dialect)


def _outcome(status: int, ended: bool) -> str:
    if not ended:
        return "cancelled"
    return "answered" if status < 400 else "refused" if status < 500 else "failed"
