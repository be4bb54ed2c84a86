"""Every error leaves in the dialect that its path speaks, also those that FastAPI would word in its own way."""

from __future__ import annotations

import logging
import uuid

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from clawrl.serving.dialects import chat, messages
from clawrl.serving.errors import ApiError, internal, invalid_request

log = logging.getLogger(__name__)


def install_error_handlers(api: FastAPI) -> None:
    @api.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error_response(request, error)

    @api.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return error_response(request, invalid_request(first["msg"], ".".join(str(part) for part in first["loc"])))

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(request, ApiError(error.status_code, message, type="invalid_request_error", code=None))

    @api.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        response = error_response(request, internal())
        log.error("request %s failed", response.headers["X-Request-Id"], exc_info=error)
        return response


def error_response(request: Request, error: ApiError) -> Response:
    dialect = messages if request.url.path.startswith("/v1/messages") else chat
    headers = {"X-Request-Id": uuid.uuid4().hex, **(error.headers or {})}
    # What the client may name when it asks what happened. The error's own words may hold the client's.
    level = logging.WARNING if error.status >= 500 else logging.INFO
    log.log(level, "request %s is answered with %d %s", headers["X-Request-Id"], error.status, error.code)
    return JSONResponse(dialect.error(error), error.status, headers)
