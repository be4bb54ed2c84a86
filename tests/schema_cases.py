"""For every rule of a JSON Schema a value that keeps it and values that break it and nothing else.

Knows the keywords that the project's schemas use, and refuses others, so that no rule goes untested. Starts from a
value that conforms; what that lacks is made up, from the ``examples`` of a schema where it has some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]
_KINDS = (None, True, 7, 0.5, "no such value", [], {})
_RULES = {
    "type", "const", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "required", "additionalProperties", "minItems", "maxItems", "not",
}  # fmt: skip
_SAYS_NOTHING = {"description", "examples", "default", "properties", "items", "anyOf", "$ref"}
_MISSING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``rule`` is where the rule stands in the schema."""

    rule: str
    good: Any
    bad: Any


class SchemaCases:
    """``components`` are the schemas that a ``$ref`` may name."""

    def __init__(self, components: Json) -> None:
        self._components = components
        # One for all schemas, since it takes long to find its way through the components.
        self._validator = Draft202012Validator({"components": {"schemas": components}})

    def valid(self, schema: Json, value: Any) -> bool:
        return bool(self._validator.evolve(schema=schema).is_valid(value))

    def rules(self, schema: Json, at: str = "") -> Iterator[str]:
        """Where every rule stands. Raises `ValueError` for a keyword that is not known here."""
        schema, at = self._resolved(schema, at)
        for keyword, value in schema.items():
            if keyword not in _RULES | _SAYS_NOTHING:
                raise ValueError(f"{at}: no cases can be made of {keyword!r}")
            if keyword == "required":
                yield from (f"{at}/required/{name}" for name in value)
            elif keyword in _RULES:
                yield f"{at}/{keyword}"
        for name, part in self._parts(schema):
            yield from self.rules(part, f"{at}/{name}")

    def cases(self, schema: Json, base: Any = _MISSING, at: str = "") -> Iterator[Case]:
        """``base`` conforms to the schema. A bad value may still be good by another branch of an ``anyOf`` around."""
        schema, at = self._resolved(schema, at)
        if base is _MISSING or not self.valid(schema, base):
            base = self.sample(schema)
        for keyword in _RULES & set(schema):
            for rule, bad in self._broken(schema, keyword, base):
                yield Case(rule=f"{at}/{rule}", good=base, bad=bad)
        for name, part in schema.get("properties", {}).items():
            held = base.get(name, _MISSING) if isinstance(base, dict) else _MISSING
            for case in self.cases(part, held, f"{at}/{name}"):
                yield Case(rule=case.rule, good={**base, name: case.good}, bad={**base, name: case.bad})
        if isinstance(more := schema.get("additionalProperties"), dict):
            for case in self.cases(more, at=f"{at}/*"):
                yield Case(rule=case.rule, good={**base, "more": case.good}, bad={**base, "more": case.bad})
        if "items" in schema:
            # What is there stays behind it, since the last item may have a meaning.
            for case in self.cases(schema["items"], at=f"{at}/items"):
                yield Case(rule=case.rule, good=[case.good, *base], bad=[case.bad, *base])
        for i, branch in enumerate(schema.get("anyOf", ())):
            yield from self.cases(branch, base, f"{at}/{i}")

    def sample(self, schema: Json) -> Any:
        """A small value that conforms."""
        schema, at = self._resolved(schema, "")
        found = self._sample(schema)
        assert self.valid(schema, found), f"{at}: {found!r} was made for {schema}"
        return found

    def _sample(self, schema: Json) -> Any:
        if "examples" in schema:
            return schema["examples"][0]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            return self.sample(schema["anyOf"][0])
        kinds = schema.get("type", "string")
        kind = kinds if isinstance(kinds, str) else kinds[0]
        if kind == "object":
            return {name: self.sample(schema["properties"][name]) for name in schema.get("required", ())}
        if kind == "array":
            return [self.sample(schema["items"]) for _ in range(schema.get("minItems", 0))]
        return next(value for value in ("look", True, 1, 0.5, None) if self.valid({**schema, "type": kind}, value))

    def _broken(self, schema: Json, keyword: str, base: Any) -> Iterator[tuple[str, Any]]:
        rule = schema[keyword]
        if keyword in ("type", "const", "enum"):
            for other in _KINDS:
                if not self.valid({keyword: rule}, other):
                    yield keyword, other
        elif keyword == "required":
            for name in rule:
                yield f"required/{name}", {key: value for key, value in base.items() if key != name}
        elif keyword == "additionalProperties":
            if rule is False:
                yield keyword, {**base, "unknown": 1}
            else:
                yield keyword, {**base, "more": self._broken_value(rule)}
        elif keyword == "not":
            forbidden = {**base, **self._needed(rule)} if isinstance(base, dict) else self.sample(rule)
            yield keyword, forbidden
        elif keyword == "pattern":
            yield from ((keyword, bad) for bad in ("", "no such value", "\x00") if re.search(rule, bad) is None)
        else:
            yield from ((keyword, bad) for bad in self._beyond(schema, keyword, rule))

    def _beyond(self, schema: Json, keyword: str, bound: float) -> Iterator[Any]:
        match keyword:
            case "minLength" | "minItems":
                yield "" if keyword == "minLength" else []
            case "maxLength":
                yield "x" * (int(bound) + 1)
            case "maxItems":
                yield [self.sample(schema["items"])] * (int(bound) + 1)
            case "minimum" | "exclusiveMinimum":
                yield from (bound - 1 if keyword == "minimum" else bound, -(10**30))
            case "maximum":
                yield from (bound + 1, 10**30)

    def _broken_value(self, schema: Json) -> Any:
        return next(value for value in _KINDS if not self.valid(schema, value))

    def _needed(self, schema: Json) -> Json:
        return {name: self.sample(schema["properties"][name]) for name in schema["required"]}

    def _parts(self, schema: Json) -> Iterator[tuple[str, Json]]:
        yield from schema.get("properties", {}).items()
        if isinstance(more := schema.get("additionalProperties"), dict):
            yield "*", more
        if "items" in schema:
            yield "items", schema["items"]
        yield from ((str(i), branch) for i, branch in enumerate(schema.get("anyOf", ())))

    def _resolved(self, schema: Json, at: str) -> tuple[Json, str]:
        if "$ref" not in schema:
            return schema, at
        name = schema["$ref"].rpartition("/")[2]
        return self._components[name], f"{at}({name})"
