"""The tools of a responses request, and which of them the model may or must call.

Function tools are given to the model. A ``namespace`` holds function tools: each is given to the model as
``namespace__name``, so that equal names in two namespaces stay apart, and a call of it goes back with its ``namespace``
and its ``name`` in two fields, by which alone clients find the tool again. Hosted tools (`HOSTED`) run at their maker's
and nothing here can run them: they are left out, and the response lists the tools that are left. Any other kind is
called in a form that only its maker's models know, and is refused by its path. ``strict`` is not enforced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clawrl.serving.dialects.tools import MAX_TOOLS, chosen, function_tool
from clawrl.serving.dialects.tools import parse_tool_choice as parse_simple_choice
from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, as_text, missing, wrong_type
from clawrl.serving.request import ToolChoice

# Prefixes, since some of them have dated names too.
HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolName:
    namespace: str | None = None
    name: str

    @property
    def flat(self) -> str:
        """The one word that the model knows the tool by."""
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """``texts`` are what the chat template gets, ``shown`` the same tools as the client wrote them.

    ``names`` tells by the word that the model uses what the client calls the tool.
    """

    texts: tuple[str, ...] = ()
    shown: tuple[JsonObject, ...] = ()
    names: Mapping[str, ToolName] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    name: ToolName
    text: str
    path: str

    @property
    def shown(self) -> dict[str, Any]:
        function: dict[str, Any] = json.loads(self.text)["function"]
        return {"type": "function", **function, "name": self.name.name, "strict": False}


def parse_tools(body: JsonObject) -> Tools:
    raw = body.get("tools")
    if raw is None:
        return Tools()
    if not isinstance(raw, list):
        raise wrong_type(raw, "tools", "an array of objects")
    functions: list[_Function] = []
    shown: list[JsonObject] = []
    for i, value in enumerate(raw):
        path = f"tools[{i}]"
        item = as_object(value, path)
        kind = as_text(item.get("type", "function"), f"{path}.type")
        if kind == "namespace":
            members = list(_members(item, path))
            functions += members
            shown.append(_namespace(item, members, path))
        elif not kind.startswith(HOSTED):
            function = _function(item, path)
            functions.append(function)
            shown.append(function.shown)
    if len(functions) > MAX_TOOLS:
        raise invalid_request(f"Invalid 'tools': at most {MAX_TOOLS} tools, but got {len(functions)}.", "tools")
    return Tools(texts=tuple(f.text for f in functions), shown=tuple(shown), names=_by_flat_name(functions))


def parse_tool_choice(body: JsonObject, tools: Tools) -> ToolChoice:
    value = body.get("tool_choice")
    if not isinstance(value, dict):
        return parse_simple_choice(body, tools.texts)
    if value.get("type") != "function":
        raise unsupported("tool_choice", "'tool_choice' may name a function only.", "Use type 'function'.")
    return chosen(tool_name(value, "tool_choice").flat, tools.texts)


def tool_name(item: JsonObject, path: str) -> ToolName:
    """The name of a tool where it is offered, chosen or called."""
    if item.get("name") is None:
        raise missing(f"{path}.name")
    namespace = item.get("namespace")
    return ToolName(
        namespace=None if namespace is None else as_text(namespace, f"{path}.namespace"),
        name=as_text(item["name"], f"{path}.name"),
    )


def _members(item: JsonObject, path: str) -> Iterator[_Function]:
    members = item.get("tools")
    if not isinstance(members, list):
        raise wrong_type(members, f"{path}.tools", "an array of function tools")
    namespace = tool_name(item, path).name
    for i, member in enumerate(members):
        yield _function(as_object(member, f"{path}.tools[{i}]"), f"{path}.tools[{i}]", namespace)


def _function(item: JsonObject, path: str, namespace: str | None = None) -> _Function:
    kind = item.get("type", "function")
    if kind != "function":
        raise unsupported(
            f"{path}.type", f"'{path}': tools of type {quoted(kind)} are not served.", "Use type 'function'."
        )
    name = ToolName(namespace=namespace, name=tool_name(item, path).name)
    parameters = item.get("parameters")
    described = function_tool(
        name.flat,
        _description(item, path),
        None if parameters is None else as_object(parameters, f"{path}.parameters"),
    )
    return _Function(name=name, text=as_text(described, f"{path}.parameters"), path=path)


def _namespace(item: JsonObject, members: list[_Function], path: str) -> JsonObject:
    return {
        "type": "namespace",
        "name": item["name"],
        "description": _description(item, path) or "",
        "tools": [member.shown for member in members],
    }


def _description(item: JsonObject, path: str) -> str | None:
    description = item.get("description")
    return None if description is None else as_text(description, f"{path}.description")


def _by_flat_name(functions: list[_Function]) -> dict[str, ToolName]:
    """Raises `ApiError` for two tools that the model could not tell apart, though the client can."""
    names: dict[str, ToolName] = {}
    for function in functions:
        flat = function.name.flat
        if names.setdefault(flat, function.name) != function.name:
            raise invalid_request(
                f"Invalid '{function.path}': the model would know it and another tool as {quoted(flat)}. Rename one.",
                f"{function.path}.name",
            )
    return names
