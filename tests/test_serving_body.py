"""A request's body: what is no JSON object, what is too long, and what is too deep."""

from __future__ import annotations

import json

import pytest

from clawrl.serving.body import MAX_DEPTH, decode_body
from clawrl.serving.errors import ApiError

LIMIT = 1_000_000


def _refusal(raw: bytes, limit: int = LIMIT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode_body(raw, limit)
    return caught.value


def _nested(levels: int, opening: bytes, closing: bytes) -> bytes:
    """An object of this many levels, itself one of them."""
    return b'{"a":' + opening * (levels - 1) + b"1" + closing * (levels - 1) + b"}"


def test_an_object_is_decoded_with_every_kind_of_value() -> None:
    fields = {"model": "tiny", "text": "naïve 🙂 语", "n": 5, "x": 0.5, "on": True, "off": None, "list": [{"a": []}]}
    for spelled in (json.dumps(fields), json.dumps(fields, ensure_ascii=False), f"\n {json.dumps(fields, indent=1)} "):
        assert decode_body(spelled.encode(), LIMIT) == fields


def test_an_empty_object_is_an_object() -> None:
    assert decode_body(b"{}", LIMIT) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b'{"a": 1} {"b": 2}',
        b"{'a': 1}",
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 5000 + b"}",
    ],
)
def test_bytes_that_are_no_json_are_a_400(raw: bytes) -> None:
    error = _refusal(raw)
    assert (error.status, error.code, error.param) == (400, "invalid_json", None)
    assert "not valid JSON" in error.message and len(error.message) < 200


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_a_constant_that_is_no_number_is_refused_by_its_name(name: str) -> None:
    error = _refusal(b'{"temperature": ' + name.encode() + b"}")
    assert (error.status, error.code) == (400, "invalid_json")
    assert f"{name} is not a JSON number" in error.message


@pytest.mark.parametrize("raw", [b"[]", b"null", b"3", b'"text"', b"true", b"[{}]"])
def test_json_that_is_no_object_is_a_400(raw: bytes) -> None:
    error = _refusal(raw)
    assert (error.status, error.code) == (400, "invalid_json")
    assert "must be a JSON object" in error.message


def test_a_body_may_be_just_as_long_as_the_limit() -> None:
    raw = b'{"a": "' + b"x" * 91 + b'"}'
    assert len(raw) == 100 and decode_body(raw, 100) == {"a": "x" * 91}
    error = _refusal(raw, 99)
    assert (error.status, error.code) == (413, "request_too_large")
    assert "99 bytes" in error.message


def test_a_body_that_is_too_long_is_not_even_read() -> None:
    assert _refusal(b"\xff" * 101, 100).status == 413


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_a_body_may_be_just_as_deep_as_the_limit(opening: bytes, closing: bytes) -> None:
    each = opening.count(b"[") + opening.count(b"{")
    levels = (MAX_DEPTH - 1) // each + 1
    assert decode_body(_nested(levels, opening, closing), LIMIT)
    error = _refusal(_nested(levels + 1, opening, closing))
    assert (error.status, error.code) == (400, "invalid_json")
    assert f"deeper than {MAX_DEPTH} levels" in error.message


def test_depth_is_found_wherever_it_is() -> None:
    deep = _nested(MAX_DEPTH + 1, b"[", b"]").removeprefix(b'{"a":').removesuffix(b"}")
    assert "deeper than" in _refusal(b'{"x": [1, "y"], "a": [2, ' + deep + b'], "z": {}}').message


def test_many_brackets_are_not_deep() -> None:
    flat = {"messages": [{"role": "user", "content": "[{" * 100, "parts": [[]]} for _ in range(2 * MAX_DEPTH)]}
    assert decode_body(json.dumps(flat).encode(), LIMIT) == flat
