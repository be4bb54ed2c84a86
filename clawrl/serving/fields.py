"""Typed reading of fields from a decoded JSON object.

Every reader returns ``None`` for a field that is absent or null and raises a 400 that names the field otherwise.
Nothing is coerced except an integer where a number is asked for: a boolean is no number, ``16.0`` no integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from clawrl.serving.errors import ApiError, invalid_request

JsonObject = Mapping[str, Any]


def text(body: JsonObject, name: str) -> str | None:
    value = body.get(name)
    return None if value is None else as_text(value, name)


def flag(body: JsonObject, name: str, path: str | None = None) -> bool | None:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise wrong_type(value, path or name, "a boolean")


def integer(body: JsonObject, name: str, low: int | None = None, high: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(value, name, "an integer")
    if (low is not None and value < low) or (high is not None and value > high):
        raise _out_of_range(value, name, low, high)
    return value


def number(body: JsonObject, name: str, low: float, high: float) -> float | None:
    """Bounds are inclusive; NaN is never inside them."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, name, "a number")
    # Compared before the cast: an integer of a thousand digits has no float.
    if not low <= value <= high:
        raise _out_of_range(value, name, low, high)
    return float(value)


def as_object(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise wrong_type(value, path, "an object")
    return cast(JsonObject, value)


def as_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, path, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair; no tokenizer and no hash can take it.
        raise invalid_request(f"Invalid value for '{path}': it holds an unpaired surrogate.", path) from None
    return value


def wrong_type(value: object, path: str, wanted: str) -> ApiError:
    return invalid_request(
        f"Invalid type for '{path}': expected {wanted}, but got {_kind(value)} instead.", path, "invalid_type"
    )


def missing(path: str) -> ApiError:
    return invalid_request(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def _out_of_range(value: float, path: str, low: float | None, high: float | None) -> ApiError:
    bounds = [f"at least {low}" if low is not None else "", f"at most {high}" if high is not None else ""]
    shown = str(value) if isinstance(value, float) or abs(value) < 10**18 else "an enormous number"
    return invalid_request(
        f"Invalid value for '{path}': {shown}. It must be {' and '.join(b for b in bounds if b)}.", path
    )


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")
