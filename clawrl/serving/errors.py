"""What a client is told when a request is refused, in OpenAI's shape.

An `ApiError` is raised anywhere between the HTTP body and the engine, crosses actors by pickle, and becomes
``{"error": {message, type, param, code}}`` with its status and headers at the ingress. The statuses are those on
which openai-python picks its exception class and its retries: 400, 401, 403, 404 and 413 are never retried, 429, 500
and 503 are. A 401 makes some clients shelve the key, so it is for a wrong key only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

INVALID_REQUEST = "invalid_request_error"


class ApiError(Exception):
    """A refusal with everything that the HTTP answer needs. ``param`` is a path such as ``messages[1].content``."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, type, param, code, dict(headers or {}))  # the arguments that pickle replays
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def json(self) -> bytes:
        return json.dumps(self.body(), ensure_ascii=False).encode()


def quoted(value: object) -> str:
    """A client's value as an error message shows it: short, whatever was sent."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def invalid_request(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, what: str, remedy: str) -> ApiError:
    """A parameter that is understood but cannot be honoured: better refused by name than quietly ignored."""
    return ApiError(400, f"{what} {remedy}", param=param, code="unsupported_parameter")


def invalid_key(given: bool) -> ApiError:
    what = (
        "Incorrect API key provided."
        if given
        else "You didn't provide an API key. Send it in an Authorization header: Authorization: Bearer YOUR_KEY."
    )
    return ApiError(401, what, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def not_permitted() -> ApiError:
    return ApiError(403, "This key may talk and give feedback; operating takes the operator's key.", code="forbidden")


def unknown_model(asked: str, served: str) -> ApiError:
    message = f"The model {quoted(asked)} does not exist here; this endpoint serves '{served}'."
    return ApiError(404, message, param="model", code="model_not_found")


def unknown_response(turn_id: str) -> ApiError:
    asked = quoted(f"resp_{turn_id}")
    message = f"There is no response {asked} of yours here; send the whole conversation in 'input' instead."
    return ApiError(404, message, param="previous_response_id", code="previous_response_not_found")


def unknown_turn(turn_id: str) -> ApiError:
    message = (
        f"No turn {quoted(turn_id)} is known here; the oldest finished ones are only counted "
        "(ledger.keep_finished_turns says how many are kept)."
    )
    return ApiError(404, message, param="turn_id", code="turn_not_found")


def unknown_session(session: str) -> ApiError:
    return ApiError(
        404,
        f"No turn of a session {quoted(session)} is known here.",
        "invalid_request_error",
        "session",
        "session_not_found",
    )


def version_not_kept(number: int, kept: Sequence[int]) -> ApiError:
    shown = ", ".join(map(str, kept)) or "none"
    message = (
        f"Version {number} cannot be rolled back to: its weights are not kept, or never were. Kept are: {shown} "
        "(publish.keep_snapshots says how many)."
    )
    return ApiError(404, message, param="version", code="version_not_kept")


def conflict(message: str, code: str) -> ApiError:
    """What was asked makes sense, but not now."""
    return ApiError(409, message, code=code)


def context_overflow(context_length: int, prompt_tokens: int, completion_tokens: int = 1) -> ApiError:
    """OpenAI's wording to the letter: clients recognise the text, not the code, and shorten the conversation.

    Some look for the code in the text, so it ends with it.
    """
    message = (
        f"This model's maximum context length is {context_length} tokens. However, you requested "
        f"{prompt_tokens + completion_tokens} tokens ({prompt_tokens} in the messages, {completion_tokens} in the "
        "completion). Please reduce the length of the messages or completion. (context_length_exceeded)"
    )
    return ApiError(400, message, param="messages", code="context_length_exceeded")


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


def overloaded(retry_after_s: float = 1.0) -> ApiError:
    return ApiError(
        429,
        "The server is at its limit of waiting requests. Please try again later.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))},
    )


def too_many_requests(per_minute: int, wait_s: float) -> ApiError:
    return ApiError(
        429,
        f"This key may send {per_minute} requests a minute. Please try again later.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(max(1, math.ceil(wait_s)))},
    )


def unavailable(message: str = "The model is not available right now. Please try again.") -> ApiError:
    return ApiError(503, message, type="service_unavailable_error", code="unavailable")


def empty_answer() -> ApiError:
    """A 5xx, so that clients ask again: an empty answer that looks complete ends their conversation."""
    return ApiError(
        502, "The model ended its answer without a word. Please try again.", "server_error", None, "empty_answer"
    )


def malformed_call() -> ApiError:
    return ApiError(
        502,
        "The model wrote a tool call that is not valid, after a part of it had been sent. Please try again.",
        type="server_error",
        code="malformed_tool_call",
    )


def internal(message: str = "The server had an error while processing the request.") -> ApiError:
    return ApiError(500, message, type="server_error", code="internal_error")
