"""Around the whole HTTP application: what a web page may have had a browser send is refused before any route sees it.

`clawrl.serving.browsers` says what that is. The application is made before its configuration is known, so that the
rules are the running ingress's own.
"""

from __future__ import annotations

from collections.abc import Callable

from ray import serve
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from clawrl.actors.http_errors import error_response
from clawrl.serving.browsers import BrowserRules


class BrowserGuard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, rules: Callable[[], BrowserRules]) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            # Serve leaves the route's prefix in both.
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            refused = self._rules().refusal(request.method, path, request.headers)
            if refused is not None:
                return await error_response(request, refused)(scope, receive, send)
        await self._app(scope, receive, send)


def current_rules() -> BrowserRules:
    """Those of the ingress that runs in this replica."""
    rules: BrowserRules = serve.get_replica_context().servable_object.browser_rules
    return rules
