"""What the ingress is measured against: a server that answers at once, and the plainest way to forward to it.

`instant` is the server of the engine that takes no time; LiteLLM's proxy forwards to it, and so does `forwarder`, in
the way of the reference implementation: FastAPI in front, httpx behind, the key checked, the body read and written.
Run either with uvicorn; ``INSTANT_URL`` tells the forwarder where to forward to.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from bench.ingress_graph import WORDS

MODEL = "instant"
KEY = "sk-bench"
_USAGE = {"prompt_tokens": 8, "completion_tokens": len(WORDS), "total_tokens": 8 + len(WORDS)}
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": MODEL}


def _whole() -> bytes:
    message = {"role": "assistant", "content": "".join(WORDS)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()


def _events() -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in WORDS)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [{**_HEAD, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


_WHOLE, _EVENTS = _whole(), _events()


async def instant(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application of its own: no framework between it and the socket."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    stream = b'"stream": true' in body or b'"stream":true' in body
    kind = b"text/event-stream" if stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    for part in _EVENTS if stream else [_WHOLE]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


forwarder = FastAPI()
_client = httpx.AsyncClient(timeout=60.0, limits=httpx.Limits(max_connections=1000, max_keepalive_connections=1000))


@forwarder.post("/v1/chat/completions")
async def forward(request: Request) -> Response:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise HTTPException(401)
    body = await request.json()
    url = f"{os.environ['INSTANT_URL']}/v1/chat/completions"
    if not body.get("stream"):
        return JSONResponse((await _client.post(url, json=body)).json())

    async def passed_on() -> AsyncIterator[bytes]:
        async with _client.stream("POST", url, json=body) as reply:
            async for part in reply.aiter_bytes():
                yield part

    return StreamingResponse(passed_on(), media_type="text/event-stream")
