"""What a client of this dialect is told when a request is refused: ``{"type": "error", "error": {type, message}}``.

The type follows from the status alone. The context overflow keeps its sentence behind the words by which these clients
know that the conversation must be shortened.
"""

from __future__ import annotations

from typing import Any

from clawrl.serving.errors import ApiError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_OVERFLOW = "prompt is too long: "


def error_body(error: ApiError) -> dict[str, Any]:
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    overflows = error.code == "context_length_exceeded"
    message = _OVERFLOW + error.message if overflows else error.message
    return {"type": "error", "error": {"type": _TYPES.get(error.status, other), "message": message}}
