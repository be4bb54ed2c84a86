"""An answer that must be JSON: what clients ask for in three spellings, as the text of one JSON schema.

Whether the engine can hold an answer to the schema, it says itself. Tool calls and such an answer exclude each other
here, so that a request for both is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clawrl.messages import SamplingParams
from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, missing

MAX_SCHEMA_CHARS = 100_000
_ANY_OBJECT = {"type": "object"}


def held_to(
    sampling: SamplingParams, form: Any, path: str, *, tools: Sequence[str], nested: str = ""
) -> SamplingParams:
    """``sampling`` of an answer that has the ``form`` which the client's field ``path`` asks for.

    ``nested`` is the member of it that has the schema, where it is not the form itself. ``tools`` are those that may be
    called. Raises `ApiError`.
    """
    schema = _schema(form, path, nested)
    if schema is None:
        return sampling
    if tools:
        raise unsupported(path, f"'{path}' together with tools is not supported.", "Set 'tool_choice' to none.")
    written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(written) > MAX_SCHEMA_CHARS:
        raise invalid_request(f"Invalid '{path}': the schema has more than {MAX_SCHEMA_CHARS} characters.", path)
    return replace(sampling, json_schema=written)


def _schema(form: Any, path: str, nested: str) -> JsonObject | None:
    if form is None:
        return None
    asked = as_object(form, path)
    kind = asked.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        known = "'text', 'json_object' or 'json_schema'"
        raise invalid_request(f"Invalid '{path}.type': {quoted(kind)}. It must be {known}.", f"{path}.type")
    holder = as_object(asked.get(nested), f"{path}.{nested}") if nested else asked
    where = f"{path}.{nested}.schema" if nested else f"{path}.schema"
    if holder.get("schema") is None:
        raise missing(where)
    return as_object(holder["schema"], where)
