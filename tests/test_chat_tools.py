"""The tools of a chat body, which of them may or must be called, and how they reach the template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from clawrl.messages import NO_INPUTS, Message, TemplateInputs
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects.chat import read
from clawrl.serving.dialects.tools import MAX_TOOLS, chosen, function_tool, parse_tool_choice, parse_tools
from clawrl.serving.errors import ApiError
from clawrl.serving.request import ANY_TOOL, ToolChoice
from clawrl.serving.template import ChatRenderer

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string", "description": "wo: Größe 🙂"}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "Look at it.", "parameters": PARAMETERS}}
WAIT = {"type": "function", "function": {"name": "wait"}}
TOOLS = parse_tools({"tools": [LOOK, WAIT]})
USER = (Message(role="user", content="hi"),)
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }} {{ tool.function.parameters | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined %}{{ ' thinking' if enable_thinking else ' silent' }}{% endif %}"
    "{% if style %} in {{ style.colour }}{% endif %}"
    "{% if add_generation_prompt %} >{% endif %}"
)


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_tools(fields)
    return caught.value


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


def _text(folder: Path, inputs: TemplateInputs) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    return ChatRenderer(tokenizer, 500).text(USER, inputs)


def test_a_tool_keeps_what_templates_show_and_loses_the_rest() -> None:
    strict = {"type": "function", "function": LOOK["function"] | {"strict": True}, "cache_control": {"type": "x"}}
    assert [json.loads(tool) for tool in parse_tools({"tools": [strict]})] == [LOOK]


def test_tools_stay_in_their_order() -> None:
    assert [json.loads(tool)["function"]["name"] for tool in TOOLS] == ["look", "wait"]
    assert parse_tools({"tools": [WAIT, LOOK]}) == TOOLS[::-1]


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    for function in ({"name": "wait"}, {"name": "wait", "parameters": None, "description": None}):
        (tool,) = parse_tools({"tools": [_function(**function)]})
        assert json.loads(tool) == _function(name="wait", parameters={"type": "object", "properties": {}})
        assert tool == function_tool("wait", None, None)


def test_a_tool_may_leave_its_type_out() -> None:
    assert parse_tools({"tools": [WAIT | {"type": None}]}) == parse_tools({"tools": [{"function": {"name": "wait"}}]})
    assert parse_tools({"tools": [{"function": {"name": "wait"}}]}) == TOOLS[1:]


@pytest.mark.parametrize("fields", [{}, {"tools": None}, {"tools": []}])
def test_there_may_be_no_tools(fields: dict[str, Any]) -> None:
    assert parse_tools(fields) == ()


@pytest.mark.parametrize(
    ("tool", "path", "code"),
    [
        ("look", "", "invalid_type"),
        ({"type": "web_search"}, ".type", "unsupported_parameter"),
        ({"type": 3, "function": {"name": "f"}}, ".type", "unsupported_parameter"),
        ({"type": "function"}, ".function", "missing_required_parameter"),
        ({"type": "function", "function": []}, ".function", "invalid_type"),
        (_function(), ".function.name", "missing_required_parameter"),
        (_function(name=3), ".function.name", "invalid_type"),
        (_function(name="\ud83d"), ".function.name", "invalid_value"),
        (_function(name="f", description=["d"]), ".function.description", "invalid_type"),
        (_function(name="f", parameters="{}"), ".function.parameters", "invalid_type"),
        (_function(name="f", parameters={"a": ["\ud83d"]}), ".function.parameters", "invalid_value"),
    ],
)
def test_a_wrong_tool_is_named_by_its_path(tool: Any, path: str, code: str) -> None:
    error = _refusal(tools=[LOOK, tool])
    assert (error.status, error.param, error.code) == (400, f"tools[1]{path}", code)
    assert "tools[1]" in error.message


def test_there_may_be_only_so_many_tools() -> None:
    assert len(parse_tools({"tools": [WAIT] * MAX_TOOLS})) == MAX_TOOLS
    error = _refusal(tools=[WAIT] * (MAX_TOOLS + 1))
    assert (error.status, error.param, error.code) == (400, "tools", "invalid_value")
    assert str(MAX_TOOLS) in error.message


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, ANY_TOOL),
        ("auto", ANY_TOOL),
        ("none", ToolChoice(allowed=False)),
        ("required", ToolChoice(required=True)),
        (_function(name="wait"), ToolChoice(required=True, name="wait")),
    ],
)
def test_a_choice_says_whether_tools_may_or_must_be_called(value: Any, choice: ToolChoice) -> None:
    assert parse_tool_choice({"tool_choice": value}, TOOLS) == choice


def test_no_choice_is_any_tool_and_nothing_can_be_required_where_there_is_none() -> None:
    assert parse_tool_choice({}, TOOLS) == ANY_TOOL
    assert parse_tool_choice({"tool_choice": "required"}, ()) == ToolChoice(required=False)


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ("any", "tool_choice", "invalid_value"),
        (True, "tool_choice", "invalid_value"),
        (["auto"], "tool_choice", "invalid_value"),
        ({"type": "custom"}, "tool_choice", "unsupported_parameter"),
        ({}, "tool_choice", "unsupported_parameter"),
        ({"type": "function"}, "tool_choice.function", "invalid_type"),
        (_function(), "tool_choice.function.name", "invalid_type"),
        (_function(name="jump"), "tool_choice", "invalid_value"),
    ],
)
def test_a_wrong_choice_is_named_by_its_path(value: Any, param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_tool_choice({"tool_choice": value}, TOOLS)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert param in caught.value.message


def test_only_a_tool_that_is_there_can_be_chosen() -> None:
    assert chosen("look", TOOLS) == ToolChoice(required=True, name="look")
    with pytest.raises(ApiError, match="there is no tool 'look'"):
        chosen("look", TOOLS[1:])


def test_tools_are_given_to_the_template_as_objects(tiny_folder: Path) -> None:
    shown = json.dumps(PARAMETERS, ensure_ascii=False)
    assert _text(tiny_folder, TemplateInputs(tools=TOOLS)).startswith(f"[look {shown}][wait {{")
    assert _text(tiny_folder, NO_INPUTS) == "user:hi >"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"enable_thinking": False}, " silent"),
        ({"chat_template_kwargs": {"enable_thinking": True, "style": {"colour": "green"}}}, " thinking in green"),
        ({"chat_template_kwargs": {"nobody": "knows"}}, ""),
    ],
)
def test_arguments_of_the_client_reach_the_template(tiny_folder: Path, fields: dict[str, Any], said: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields
    inputs = read(body, {}, ServingConfig(served_name="tiny")).request.inputs
    assert _text(tiny_folder, inputs) == f"user:hi{said} >"


@pytest.mark.parametrize(
    "name", ["add_generation_prompt", "chat_template", "conversation", "tokenize", "tools", "self"]
)
def test_an_argument_that_is_the_server_s_own_is_refused_by_name(tiny_folder: Path, name: str) -> None:
    with pytest.raises(ApiError, match=f"must not set '{name}'") as caught:
        _text(tiny_folder, TemplateInputs(arguments=json.dumps({"style": None, name: False})))
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")
