"""Refusals and failures: one shape in OpenAI's dialects and wherever no dialect is spoken, another in Anthropic's."""

from __future__ import annotations

from collections.abc import Sequence

from clawrl.serving.openapi.schemas import Json, maybe, one_of, record, ref, text

_MEANINGS = {
    400: "The request is malformed, or asks for what is not served. Change it.",
    401: "The key is missing or wrong.",
    403: "This takes the operator's key; or there is none, and a web page may have had a browser ask. See the message.",
    404: "There is no such model, turn, session, version or response here.",
    409: "Not now; the message says why.",
    413: "The body is larger than the server takes.",
    429: "Too many requests. Try again after as many seconds as `Retry-After` says.",
    500: "Something went wrong in the server.",
    502: "The model ended its answer without a word, or with a tool call that is not valid. Try again.",
    503: "A part of the server is away. Try again.",
}
_HEADERS = {
    401: {"WWW-Authenticate": {"description": "How to send a key.", "schema": text()}},
    429: {"Retry-After": {"description": "Whole seconds.", "schema": text(pattern="^[1-9][0-9]*$")}},
}
OPENAI = "Error"
ANTHROPIC = "MessagesError"


def schemas() -> dict[str, Json]:
    inner = {
        "message": text("What is wrong, and what to do about it."),
        "type": one_of("invalid_request_error", "rate_limit_error", "service_unavailable_error", "server_error"),
        "param": maybe(text("Where it is wrong, such as `messages[1].content`.")),
        "code": maybe(text("Such as `invalid_value`, `context_length_exceeded` or `model_not_found`.")),
    }
    kinds = (
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
    )
    worded = record({"type": one_of(*kinds), "message": text()}, ("type", "message"))
    return {
        OPENAI: record({"error": record(inner, tuple(inner))}, ("error",)),
        ANTHROPIC: record({"type": one_of("error"), "error": worded}, ("type", "error")),
    }


def responses() -> dict[str, Json]:
    """Every status in both shapes, to be named by `refusals`."""
    return {f"{shape}{status}": _response(shape, status) for shape in (OPENAI, ANTHROPIC) for status in _MEANINGS}


def refusals(statuses: Sequence[int], shape: str = OPENAI) -> dict[str, Json]:
    return {str(status): {"$ref": f"#/components/responses/{shape}{status}"} for status in statuses}


def _response(shape: str, status: int) -> Json:
    request_id = {"X-Request-Id": {"description": "Name it when you report this.", "schema": text()}}
    return {
        "description": _MEANINGS[status],
        "headers": request_id | _HEADERS.get(status, {}),
        "content": {"application/json": {"schema": ref(shape)}},
    }
