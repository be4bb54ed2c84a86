"""A server without Ray that answers by a script: the project's own dialects, keys, bodies and errors over HTTP.

It stands where the ingress stands, before one `ScriptedReplica`. Everything that arrives is kept: `Scripted.requests`
whatever came, `Scripted.turns` each answered turn as the ledger would get it, its arrival included.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from clawrl.actors.generation import Refused, tasks_for
from clawrl.actors.http_errors import install_error_handlers
from clawrl.messages import Turn
from clawrl.serving import errors
from clawrl.serving.auth import KeyRing
from clawrl.serving.body import decode_body
from clawrl.serving.config import SamplingDefaults, ServingConfig
from clawrl.serving.dialects import chat, messages, responses
from clawrl.serving.dialects.base import AnswerFacts, Asked
from clawrl.serving.fields import JsonObject
from clawrl.serving.pieces import alive, merged, started, whole_answers
from tests.clients.heard import Endpoint
from tests.clients.replica import ScriptedReplica

KEY = "a key for clients"
MODEL = "scripted"
_HEARTBEAT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """A request as it was sent. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: JsonObject


@dataclass
class Scripted:
    """Set ``busy`` to have so many requests refused first."""

    base_url: str = ""
    busy: int = 0
    requests: list[Came] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(base_url=self.base_url, key=KEY, model=MODEL)

    def forget(self) -> None:
        self.busy = 0
        self.requests.clear()
        self.turns.clear()


def _app(seen: Scripted) -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)
    config = ServingConfig(
        served_name=MODEL, api_key=KEY, heartbeat_s=_HEARTBEAT_S, sampling=SamplingDefaults(max_tokens=2000)
    )
    keys = KeyRing(config, {})
    replica = ScriptedReplica(seen.turns, config)

    async def body_of(request: Request) -> JsonObject:
        body = decode_body(await request.body(), config.max_body_bytes)
        seen.requests.append(Came(path=request.url.path, headers=dict(request.headers), body=body))
        return body

    async def answer(asked: Asked, owner: str) -> Response:
        if seen.busy > 0:
            seen.busy -= 1
            raise errors.overloaded()
        wanted, now = asked.request, time.time()
        tasks = tasks_for(wanted, owner, now)
        pieces = merged([alive(replica.generate(task), config.heartbeat_s) for task in tasks])
        turn_ids = tuple(task.arrival.turn_id for task in tasks)
        writer = asked.writer(
            AnswerFacts(turn_ids=turn_ids, model=wanted.model, created=int(now), session=wanted.facts.session)
        )
        begun = await started(pieces)
        headers = {"X-Request-Id": turn_ids[0]}
        if not wanted.stream:
            return JSONResponse(writer.whole(await whole_answers(begun, wanted.answers)), headers=headers)
        return StreamingResponse(writer.stream(begun), media_type="text/event-stream", headers=headers)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        identity = keys.admitted(request.headers)
        return await answer(chat.read(await body_of(request), request.headers, config), identity.owner)

    @app.post("/v1/responses")
    async def openai_responses(request: Request) -> Response:
        identity = keys.admitted(request.headers)
        asked = responses.read(await body_of(request), request.headers, config)
        if asked.previous is not None:
            past = next((turn for turn in seen.turns if turn.turn_id == asked.previous), None)
            if past is None or past.arrival.owner != identity.owner:
                raise errors.unknown_response(asked.previous)
            asked = responses.with_history(asked, past.arrival, past.answer)
        return await answer(asked, identity.owner)

    @app.post("/v1/messages")
    async def anthropic_messages(request: Request) -> Response:
        identity = keys.admitted(request.headers)
        return await answer(messages.read(await body_of(request), request.headers, config), identity.owner)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> dict[str, Any]:
        keys.admitted(request.headers)
        said, inputs = messages.read_count(await body_of(request), config)
        counted = await replica.count_tokens(said, inputs)
        if isinstance(counted, Refused):
            raise counted.error
        return {"input_tokens": counted}

    return app


@contextmanager
def scripted_server() -> Iterator[Scripted]:
    """Runs in a thread, on a port of its own."""
    seen = Scripted()
    listener = socket.create_server(("127.0.0.1", 0))
    seen.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(_app(seen), log_level="critical", lifespan="off", timeout_keep_alive=600))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
