"""A request's body as a JSON object, within limits of size and depth."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from clawrl.serving.errors import body_too_large, invalid_request
from clawrl.serving.fields import JsonObject

MAX_DEPTH = 64


async def whole_body(parts: AsyncIterator[bytes], limit: int) -> bytes:
    """Raises `ApiError` (413) as soon as there are more than ``limit`` bytes, without waiting for the rest."""
    found, size = [], 0
    async for part in parts:
        size += len(part)
        if size > limit:
            raise body_too_large(limit)
        found.append(part)
    return b"".join(found)


def decode_body(raw: bytes, limit: int) -> JsonObject:
    """Raises `ApiError`: 413 beyond ``limit`` bytes, 400 for what is no JSON object, nests beyond `MAX_DEPTH` or has a
    number that is too large to be written again."""
    if len(raw) > limit:
        raise body_too_large(limit)
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise invalid_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid_request("The request body must be a JSON object.", code="invalid_json")
    # Few brackets cannot be deep: most bodies are never walked.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise invalid_request(f"The request body nests deeper than {MAX_DEPTH} levels.", code="invalid_json")
    return value


def deeper_than(value: Any, depth: int) -> bool:
    """Whether a decoded JSON value has more than ``depth`` levels of objects and arrays, itself one of them."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
