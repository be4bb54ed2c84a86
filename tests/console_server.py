"""The server around a `Fake`: the console's page, the operator's routes, chat and feedback, on a port of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from clawrl.console.files import ConsoleFiles
from clawrl.serving.errors import ApiError, unknown_model, unknown_session, unknown_turn, version_not_kept
from tests.console_fake import WORDS, Fake

FILTERS = {"state": "state", "reason": "drop_reason", "session": "session", "version": "version", "step": "step"}


def app_of(fake: Fake) -> FastAPI:
    app = FastAPI(openapi_url=None)
    files = ConsoleFiles()

    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status, error.headers)

    @app.get("/console{path:path}")
    async def console(request: Request, path: str) -> Response:
        return files.answer(path, request.headers)

    @app.middleware("http")
    async def door(request: Request, call: Any) -> Response:
        path = request.url.path
        if path.startswith("/console"):
            return await call(request)
        if fake.down:
            # What a proxy says whose server is away; the page's own connection is cut in another test.
            return Response(status_code=502)
        fake.gets += request.method == "GET"
        fake.headers.append({**request.headers, "path": path, "query": request.url.query})
        if fake.key is not None and request.headers.get("authorization") != f"Bearer {fake.key}":
            return await refused(request, ApiError(401, "Incorrect API key provided.", code="invalid_api_key"))
        if path in fake.refuse:
            return await refused(request, fake.refuse[path])
        return await call(request)

    async def posted(request: Request) -> dict[str, Any]:
        raw = await request.body()
        body = json.loads(raw) if raw else {}
        fake.asked.append((request.url.path, body))
        return dict(body)

    @app.get("/clawrl/status")
    async def status() -> Any:
        return fake.status()

    @app.get("/clawrl/turns")
    async def turns(request: Request, before: int = 2**60, limit: int = 100) -> Any:
        query = request.query_params
        rows = [turn for turn in reversed(fake.turns) if turn["seq"] < before]
        for name, column in FILTERS.items():
            if name in query:
                rows = [row for row in rows if str(row[column]) == query[name]]
        return rows[:limit]

    @app.get("/clawrl/turns/{turn_id}")
    async def turn(turn_id: str) -> Any:
        if turn_id not in fake.lives:
            raise unknown_turn(turn_id)
        return fake.document(turn_id)

    @app.get("/clawrl/sessions")
    async def sessions(before: int = 2**60, limit: int = 100) -> Any:
        return [row for row in fake.session_documents() if row["seq"] < before][:limit]

    @app.get("/clawrl/session")
    async def session(session: str, before: int = 2**60, limit: int = 100) -> Any:
        rows = [row for row in fake.session_documents() if row["session"] == session]
        if not rows:
            raise unknown_session(session)
        found = [one for one in reversed(fake.turns) if one["session"] == session and one["seq"] < before]
        return {"session": session, "of": rows, "turns": found[:limit]}

    @app.get("/clawrl/versions")
    async def versions(before: int = 2**60, limit: int = 100) -> Any:
        return [row for row in fake.versions if row["version"] < before][:limit]

    @app.get("/clawrl/steps")
    async def steps(before: int = 2**60, limit: int = 100) -> Any:
        return [row for row in reversed(fake.steps) if row["seq"] < before][:limit]

    @app.post("/clawrl/pause")
    async def pause(request: Request) -> Any:
        fake.paused = (await posted(request)).get("reason", "")
        return {"paused": True}

    @app.post("/clawrl/resume")
    async def resume(request: Request) -> Any:
        await posted(request)
        fake.paused = fake.alarm = None
        return {"paused": False, "released": 5}

    @app.post("/clawrl/publish")
    async def publish(request: Request) -> Any:
        await posted(request)
        step = fake.steps[-1]["step"]
        return {
            "outcome": "asked",
            "version": fake.version,
            "step": step - 1,
            "newest_step": step,
            "trainer": "training",
        }

    @app.post("/clawrl/rollback")
    async def rollback(request: Request) -> Any:
        number = (await posted(request))["version"]
        wanted = next((row for row in fake.versions if row["version"] == number and row["kept"]), None)
        if wanted is None:
            raise version_not_kept(number, [0])
        before = fake.version
        fake.publish(wanted["step"], time.time(), {}, back_to=number)
        return {"version": fake.version, "rolled_back_to": number, "rolled_back_from": before, "step": wanted["step"]}

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Any:
        body = await posted(request)
        row = next(row for row in fake.turns if row["turn_id"] == body["turn_id"])
        fake.move(row, "judging")
        return {"turn_id": body["turn_id"], "outcome": "taken", "state": "judging"}

    @app.post("/clawrl/session/done")
    async def done(request: Request, session: str) -> Any:
        await posted(request)
        return {"session": session, "ended_turns": 1}

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [{"id": fake.model, "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await posted(request)
        if body["model"] != fake.model:
            raise unknown_model(body["model"], fake.model)
        answer = fake.answers.pop(0) if fake.answers else "".join(WORDS)
        side = request.headers.get("x-turn-type") == "side"
        row = fake.add_turn(
            "awaiting_next",
            answer=answer,
            asked=body["messages"],
            session=request.headers.get("x-session-id", "none"),
            version=fake.version,
            newest_version=fake.version,
            kind="side" if side else "main",
            finished_at=time.time(),
            state_at=time.time(),
        )
        ours = {"turn_id": row["turn_id"], "version": fake.version}

        async def stream() -> AsyncIterator[bytes]:
            def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                said = {"object": "chat.completion.chunk", "choices": [choice], "clawrl": ours}
                return f"data: {json.dumps(said)}\n\n".encode()

            yield chunk({"role": "assistant", "content": ""})
            for at in range(0, len(answer), 6):
                await asyncio.sleep(0.004)
                yield chunk({"content": answer[at : at + 6]})
            if body.get("max_tokens") == 1:
                yield b'data: {"error": {"message": "The engine gave up.", "type": "server_error"}}\n\n'
                return
            yield chunk({}, "stop")
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Clawrl-Turn-Id": row["turn_id"]})

    return app


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """The address of a running server."""
    server = uvicorn.Server(uvicorn.Config(app_of(fake), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the fake server did not start"
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
