"""The console's page, under ``/console``: files that hold nothing secret, without a key. A mixin of the ingress."""

# No `from __future__ import annotations` here: the routes are copied without the names that only annotations use.
from fastapi import APIRouter, Request
from fastapi.responses import Response

from clawrl.console.files import ConsoleFiles

router = APIRouter()


class ConsoleRoutes:
    """What it needs is the ingress's."""

    _console: ConsoleFiles

    @router.api_route("/console{path:path}", methods=["GET", "HEAD"])
    async def console(self, request: Request, path: str) -> Response:
        return self._console.answer(path, request.headers)
