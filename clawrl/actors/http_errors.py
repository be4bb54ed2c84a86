"""Every error leaves in OpenAI's shape, also those that FastAPI would word in its own way."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from clawrl.serving.errors import ApiError, internal, invalid_request

log = logging.getLogger(__name__)


def install_error_handlers(api: FastAPI) -> None:
    @api.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return _response(error)

    @api.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return _response(invalid_request(first["msg"], ".".join(str(part) for part in first["loc"])))

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _response(ApiError(error.status_code, message, type="invalid_request_error", code=None))

    @api.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.url.path)
        return _response(internal())


def _response(error: ApiError) -> Response:
    return Response(
        error.json(), status_code=error.status, media_type="application/json", headers=dict(error.headers or {})
    )
