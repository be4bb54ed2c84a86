"""The tools of a messages request, and which of them the model may or must call.

A tool with a ``type`` of its own, such as a web search, is known to its maker only: it has no schema that a model could
read, so it is left out. All others are given to the model, also those with ``defer_loading``. Whether several may be
called at once is the model's choice: ``disable_parallel_tool_use`` is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from clawrl.serving.dialects.tools import chosen, function_tool, listed_tools
from clawrl.serving.errors import invalid_request, quoted
from clawrl.serving.fields import JsonObject, as_object, as_text, missing
from clawrl.serving.request import ANY_TOOL, ToolChoice


def parse_tools(body: JsonObject) -> tuple[str, ...]:
    """Function tools, each as the JSON text that the chat template gets."""
    return tuple(_tool(item, path) for item, path in listed_tools(body) if _has_a_schema(item, path))


def parse_tool_choice(body: JsonObject, tools: Sequence[str]) -> ToolChoice:
    """Raises `ApiError` for a choice that is unknown or of a tool that is not there."""
    value = body.get("tool_choice")
    if value is None:
        return ANY_TOOL
    choice = as_object(value, "tool_choice")
    match choice.get("type"):
        case "auto":
            return ANY_TOOL
        case "none":
            return ToolChoice(allowed=False)
        case "any":
            return ToolChoice(required=bool(tools))
        case "tool":
            if choice.get("name") is None:
                raise missing("tool_choice.name")
            return chosen(as_text(choice["name"], "tool_choice.name"), tools)
        case kind:
            raise invalid_request(
                f"Invalid value for 'tool_choice.type': {quoted(kind)}. It must be 'auto', 'any', 'tool' or 'none'.",
                "tool_choice.type",
            )


def _has_a_schema(item: JsonObject, path: str) -> bool:
    kind = item.get("type")
    return kind is None or as_text(kind, f"{path}.type") == "custom"


def _tool(item: JsonObject, path: str) -> str:
    if item.get("name") is None:
        raise missing(f"{path}.name")
    description, schema = item.get("description"), item.get("input_schema")
    tool = function_tool(
        as_text(item["name"], f"{path}.name"),
        None if description is None else as_text(description, f"{path}.description"),
        None if schema is None else as_object(schema, f"{path}.input_schema"),
    )
    return as_text(tool, path)
