"""The body, status and headers of every refusal, and its way through pickle."""

from __future__ import annotations

import json
import pickle

import pytest

from clawrl.serving.errors import (
    ApiError,
    body_too_large,
    context_overflow,
    internal,
    invalid_key,
    invalid_request,
    overloaded,
    quoted,
    unavailable,
    unknown_model,
    unsupported,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (invalid_request("bad", "stop"), 400, "invalid_request_error", "stop", "invalid_value"),
        (unsupported("n", "No.", "Do."), 400, "invalid_request_error", "n", "unsupported_parameter"),
        (context_overflow(8, 9), 400, "invalid_request_error", "messages", "context_length_exceeded"),
        (invalid_key(given=True), 401, "invalid_request_error", None, "invalid_api_key"),
        (unknown_model("a", "b"), 404, "invalid_request_error", "model", "model_not_found"),
        (body_too_large(5), 413, "invalid_request_error", None, "request_too_large"),
        (overloaded(), 429, "rate_limit_error", None, "rate_limit_exceeded"),
        (internal(), 500, "server_error", None, "internal_error"),
        (unavailable(), 503, "service_unavailable_error", None, "unavailable"),
    ],
)
def test_each_refusal_has_its_status_and_a_nested_body(
    error: ApiError, status: int, kind: str, param: str | None, code: str
) -> None:
    assert error.status == status
    body = json.loads(error.json())
    assert body == {"error": {"message": error.message, "type": kind, "param": param, "code": code}}
    assert error.message and str(error) == error.message


def test_an_error_survives_pickle_with_all_it_says() -> None:
    copy = pickle.loads(pickle.dumps(overloaded(2.5)))
    assert isinstance(copy, ApiError)
    assert (copy.status, copy.headers, copy.body()) == (429, {"Retry-After": "3"}, overloaded().body())
    assert str(copy) == overloaded().message


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    assert [overloaded(s).headers["Retry-After"] for s in (0.0, 1.0, 1.2)] == ["1", "1", "2"]


def test_context_overflow_uses_the_wording_that_clients_match() -> None:
    assert context_overflow(2048, 2100, 256).message == (
        "This model's maximum context length is 2048 tokens. However, you requested 2356 tokens (2100 in the "
        "messages, 256 in the completion). Please reduce the length of the messages or completion. "
        "(context_length_exceeded)"
    )


def test_a_huge_value_is_shown_short() -> None:
    assert len(unknown_model("x" * 10_000, "tiny").message) < 300
    assert quoted("tool") == "'tool'"
