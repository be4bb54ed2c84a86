"""The operator's part of the HTTP API, under ``/clawrl/``: looking, pausing, publishing, rolling back, forgetting.

All of it takes the operator's key, which is checked before anything else is looked at, and is answered by the
coordinator; only the text of a turn's tokens comes from a replica, and where none answers it is left out. A mixin of
the ingress: Serve binds the routes of a deployment's base classes, too.
"""

# No `from __future__ import annotations` here: the routes are copied without the names that only annotations use.
import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from ray.serve.handle import DeploymentHandle

from clawrl.actors.calls import Coordinator, CoordinatorAway
from clawrl.actors.generation import Refused
from clawrl.inspection.asked import MOST_NUMBER, page_size, session_named, switch, turn_filter, whole_number
from clawrl.inspection.life import with_pieces
from clawrl.serving import errors
from clawrl.serving.auth import KeyRing
from clawrl.serving.body import decode_body, whole_body
from clawrl.serving.config import ServingConfig
from clawrl.serving.fields import JsonObject
from clawrl.serving.forgetting import parse_forget
from clawrl.serving.pausing import parse_pause

router = APIRouter()
_ANSWER_S = 10.0
_PIECES_S = 5.0
_FORGET_S = 600.0
_WRITTEN_AT_ONCE = 500
MOST_TURNS = 10_000
MOST_ROWS = 1_000
MOST_EXPORTED = 100


class OperatorRoutes:
    """What it needs is the ingress's."""

    _config: ServingConfig
    _keys: KeyRing
    _rollout: DeploymentHandle
    _coordinator: Coordinator

    @router.get("/clawrl/status")
    async def status(self, request: Request) -> Any:
        return await self._operate(request, "status")

    @router.get("/clawrl/turns")
    async def turns(self, request: Request) -> Response:
        self._keys.operator(request.headers)
        query = request.query_params
        wanted, before = turn_filter(query), whole_number(query, "before")
        rows = await self._look("turns", wanted, before, page_size(query, usual=100, most=MOST_TURNS))
        return await asyncio.to_thread(_sent, rows)

    @router.get("/clawrl/turns/{turn_id}")
    async def turn(self, request: Request, turn_id: str) -> Response:
        self._keys.operator(request.headers)
        document = cast(JsonObject, await self._look("turn", turn_id))
        ids = [token["id"] for token in document["tokens"]]
        pieces = await self._texts_of(ids) if ids else None
        return await asyncio.to_thread(lambda: _sent(with_pieces(document, pieces)))

    @router.get("/clawrl/export")
    async def export(self, request: Request) -> Response:
        self._keys.operator(request.headers)
        query = request.query_params
        wanted, before, sealed = turn_filter(query), whole_number(query, "before"), switch(query, "sealed")
        limit = page_size(query, usual=MOST_EXPORTED, most=MOST_EXPORTED)
        return await asyncio.to_thread(_sent, await self._look("export", wanted, before, limit, sealed))

    @router.get("/clawrl/sessions")
    async def sessions(self, request: Request) -> Response:
        return await self._page(request, "sessions")

    @router.get("/clawrl/sessions/{session:path}")
    async def session(self, request: Request, session: str) -> Response:
        return await self._page(request, "session", session)

    @router.get("/clawrl/session")
    async def session_by_query(self, request: Request) -> Response:
        """The same for any name: ``..`` is none in a path, which clients shorten."""
        self._keys.operator(request.headers)
        return await self._page(request, "session", session_named(request.query_params))

    @router.get("/clawrl/versions")
    async def versions(self, request: Request) -> Response:
        return await self._page(request, "versions")

    @router.get("/clawrl/steps")
    async def steps(self, request: Request) -> Response:
        return await self._page(request, "steps")

    @router.post("/clawrl/pause")
    async def pause(self, request: Request) -> dict[str, bool]:
        self._keys.operator(request.headers)
        fields = await self._fields(request)
        await self._ask_coordinator("pause", "operator", parse_pause(fields))
        return {"paused": True}

    @router.post("/clawrl/resume")
    async def resume(self, request: Request) -> dict[str, Any]:
        return {"paused": False, "released": await self._operate(request, "resume")}

    @router.post("/clawrl/rollback")
    async def roll_back(self, request: Request) -> Response:
        self._keys.operator(request.headers)
        return _sent(await self._look("roll_back", wanted_version(await self._fields(request))))

    @router.post("/clawrl/publish")
    async def publish(self, request: Request) -> Response:
        self._keys.operator(request.headers)
        return _sent(await self._look("publish"))

    @router.post("/clawrl/forget")
    async def forget(self, request: Request) -> Any:
        self._keys.operator(request.headers)
        # Named, so that a call that is made again because the coordinator died is known for the same one.
        wanted = replace(parse_forget(await self._fields(request)), asked=uuid.uuid4().hex)
        return await self._ask_coordinator("forget", wanted, timeout_s=_FORGET_S)

    async def _page(self, request: Request, view: str, *arguments: Any) -> Response:
        self._keys.operator(request.headers)
        query = request.query_params
        before = whole_number(query, "before")
        return _sent(await self._look(view, *arguments, before, page_size(query, usual=100, most=MOST_ROWS)))

    async def _look(self, view: str, *arguments: Any) -> Any:
        answer = await self._ask_coordinator("operator", view, *arguments)
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    async def _texts_of(self, ids: Sequence[int]) -> list[str] | None:
        try:
            async with asyncio.timeout(_PIECES_S):
                return cast(list[str], await self._rollout.pieces.remote(ids))
        except Exception:
            # Whatever keeps the replicas from it: the rest of the turn is told without.
            return None

    async def _fields(self, request: Request) -> JsonObject:
        limit = self._config.max_body_bytes
        body = await whole_body(request.stream(), limit)
        return decode_body(body, limit) if body else {}

    async def _operate(self, request: Request, method: str, *arguments: Any) -> Any:
        self._keys.operator(request.headers)
        return await self._ask_coordinator(method, *arguments)

    async def _ask_coordinator(self, method: str, *arguments: Any, timeout_s: float = _ANSWER_S) -> Any:
        try:
            return await self._coordinator.ask(method, *arguments, timeout_s=timeout_s)
        except CoordinatorAway:
            raise errors.unavailable("The coordinator is restarting. Please try again.") from None


def _sent(document: Any) -> Response:
    """Plain JSON as it is: to look through a long document for other types takes long.

    ASCII, since a client's text may hold half a character, which UTF-8 has no bytes for.
    """
    return Response(written(document), media_type="application/json")


def written(document: Any) -> str:
    """In pieces, since nothing else runs while one is written: what is called in a thread lets answers be streamed."""
    if isinstance(document, dict):
        return f"{{{','.join(f'{_plain(str(name))}:{written(value)}' for name, value in document.items())}}}"
    if not isinstance(document, list):
        return _plain(document)
    if len(document) <= _WRITTEN_AT_ONCE:
        return f"[{','.join(written(value) for value in document)}]" if _holds_more(document) else _plain(document)
    parts = (document[at : at + _WRITTEN_AT_ONCE] for at in range(0, len(document), _WRITTEN_AT_ONCE))
    return f"[{','.join(_plain(part)[1:-1] for part in parts)}]"


def _holds_more(document: list[Any]) -> bool:
    return bool(document) and isinstance(document[0], dict | list)


def _plain(document: Any) -> str:
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def wanted_version(fields: JsonObject) -> int:
    """Raises `ApiError` (400)."""
    version = fields.get("version")
    # True is an int, too, and 3.0 is a version to whoever writes numbers so.
    whole = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(version, float) and version.is_integer():
        version, whole = int(version), True
    if not whole or not 0 <= cast(int, version) <= MOST_NUMBER:
        raise errors.invalid_request("version must be the number of a version, 0 or more", "version")
    return cast(int, version)
