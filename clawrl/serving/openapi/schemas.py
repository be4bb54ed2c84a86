"""JSON Schemas in few words. Pure functions; each call gives a new object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
# What counts as nothing where a parser only asks whether there is something.
NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def text(description: str = "", **rules: Any) -> Json:
    return _described({"type": "string", **rules}, description)


def integer(description: str = "", **rules: Any) -> Json:
    return _described({"type": "integer", **rules}, description)


def number(description: str = "", **rules: Any) -> Json:
    return _described({"type": "number", **rules}, description)


def boolean(description: str = "") -> Json:
    return _described({"type": "boolean"}, description)


def one_of(*values: Any, description: str = "") -> Json:
    """One of these values."""
    return _described({"enum": list(values)}, description)


def array(items: Json, description: str = "", **rules: Any) -> Json:
    return _described({"type": "array", "items": items, **rules}, description)


def record(fields: Mapping[str, Json], required: Sequence[str] = (), description: str = "", **rules: Any) -> Json:
    """An object that may have other fields too."""
    needed = {"required": list(required)} if required else {}
    return _described({"type": "object", "properties": dict(fields), **needed, **rules}, description)


def either(*schemas: Json, description: str = "") -> Json:
    return _described({"anyOf": list(schemas)}, description)


def maybe(schema: Json) -> Json:
    """The same, or null."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def nothing(description: str) -> Json:
    return one_of(*NOTHING, description=description)


def _described(schema: Json, description: str) -> Json:
    return {"description": description, **schema} if description else schema
