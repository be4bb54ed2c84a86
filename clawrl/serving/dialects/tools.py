"""Function tools, and which of them the model may or must call, as the chat dialect spells them and others in parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from clawrl.serving.errors import invalid_request, quoted, unsupported
from clawrl.serving.fields import JsonObject, as_object, as_text, missing, wrong_type
from clawrl.serving.request import ANY_TOOL, ToolChoice

MAX_TOOLS = 256


def parse_tools(body: JsonObject) -> tuple[str, ...]:
    """Function tools, each as the JSON text that the chat template gets."""
    return tuple(_tool(item, path) for item, path in listed_tools(body))


def listed_tools(body: JsonObject) -> list[tuple[JsonObject, str]]:
    """The objects in ``tools``, each with its path for errors. Raises `ApiError` for too many and for anything else."""
    raw = body.get("tools")
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise wrong_type(raw, "tools", "an array of objects")
    if len(raw) > MAX_TOOLS:
        raise invalid_request(f"Invalid 'tools': at most {MAX_TOOLS} tools, but got {len(raw)}.", "tools")
    return [(as_object(item, f"tools[{i}]"), f"tools[{i}]") for i, item in enumerate(raw)]


def function_tool(name: str, description: str | None, parameters: Any) -> str:
    """A tool in the shape that chat templates know, whatever dialect it came in."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def parse_tool_choice(body: JsonObject, tools: Sequence[str]) -> ToolChoice:
    value = body.get("tool_choice")
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise unsupported("tool_choice", "'tool_choice' may name a function only.", "Use type 'function'.")
        named = as_object(value.get("function"), "tool_choice.function").get("name")
        return chosen(as_text(named, "tool_choice.function.name"), tools)
    if value is None or value == "auto":
        return ANY_TOOL
    if value == "none":
        return ToolChoice(allowed=False)
    if value == "required":
        return ToolChoice(required=bool(tools))
    raise invalid_request(
        f"Invalid value for 'tool_choice': {quoted(value)}. It must be 'none', 'auto', 'required' or name a function.",
        "tool_choice",
    )


def chosen(name: str, tools: Sequence[str]) -> ToolChoice:
    """The choice of one function. Raises `ApiError` where it is not among the tools."""
    if all(json.loads(tool)["function"]["name"] != name for tool in tools):
        raise invalid_request(f"Invalid 'tool_choice': there is no tool {quoted(name)} in 'tools'.", "tool_choice")
    return ToolChoice(required=True, name=name)


def _tool(item: JsonObject, path: str) -> str:
    if item.get("type") not in (None, "function"):
        raise unsupported(
            f"{path}.type", f"'{path}': only function tools are served, not {quoted(item['type'])}.", "Leave it out."
        )
    if item.get("function") is None:
        raise missing(f"{path}.function")
    function = as_object(item["function"], f"{path}.function")
    if function.get("name") is None:
        raise missing(f"{path}.function.name")
    description, parameters = function.get("description"), function.get("parameters")
    tool = function_tool(
        as_text(function["name"], f"{path}.function.name"),
        None if description is None else as_text(description, f"{path}.function.description"),
        None if parameters is None else as_object(parameters, f"{path}.function.parameters"),
    )
    # All else has been looked at: half a character can only be within the parameters.
    return as_text(tool, f"{path}.function.parameters")
