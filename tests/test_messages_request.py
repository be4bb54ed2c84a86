"""What a messages body may say, what is ignored, what is refused under which name, and how refusals look."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from clawrl.messages import Message, SamplingParams, TemplateInputs, TurnKind
from clawrl.serving.config import SamplingDefaults, ServingConfig
from clawrl.serving.dialects.messages import error, read, read_count
from clawrl.serving.errors import (
    ApiError,
    body_too_large,
    context_overflow,
    internal,
    invalid_key,
    overloaded,
    unavailable,
)
from clawrl.serving.request import ANY_TOOL, ModelRequest, ToolChoice
from clawrl.serving.sessions import session_facts
from clawrl.serving.sessions.names import session_of_metadata
from tests.wire import load

CONFIG = ServingConfig(served_name="tiny")
OVERRIDE = ServingConfig(served_name="tiny", sampling=SamplingDefaults(temperature=0.7, override=True))
LOOK = {"name": "Look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"at": {}}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
USER = Message(role="user", content="hi")


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]} | fields


def _read(config: ServingConfig = CONFIG, headers: dict[str, str] | None = None, **fields: Any) -> ModelRequest:
    return read(_body(**fields), headers or {}, config).request


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _read(**fields)
    return caught.value


def _user_id(session: Any) -> dict[str, Any]:
    return {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": session})}


def test_a_minimal_body_takes_every_default_from_the_config() -> None:
    assert _read() == ModelRequest(
        model="tiny",
        messages=(USER,),
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, stop=()),
        facts=session_facts({}, {}, TurnKind.MAIN),
    )


def test_null_is_the_same_as_absent_for_every_optional_field() -> None:
    names = ["system", "tools", "tool_choice", "temperature", "top_p", "top_k", "stop_sequences", "stream", "thinking"]
    assert _read(**dict.fromkeys([*names, "metadata", "session_id", "turn_type"])) == _read()


def test_fields_that_nobody_here_knows_are_ignored() -> None:
    extra = {"context_management": {"edits": [{"type": "clear"}]}, "output_config": {"effort": "high"}, "betas": ["b"]}
    assert _read(**extra, service_tier="auto", container=None, n=3, logit_bias={"5": 1}, stop=["x"]) == _read()


def test_the_client_s_sampling_is_honoured() -> None:
    request = _read(temperature=0.5, top_p=0.9, top_k=5, max_tokens=7, stop_sequences=["a", "b"], stream=True)
    assert request.sampling == SamplingParams(temperature=0.5, top_p=0.9, top_k=5, max_tokens=7, stop=("a", "b"))
    assert request.stream


def test_override_replaces_the_distribution_of_main_turns_and_says_so() -> None:
    request = _read(OVERRIDE, temperature=0, top_p=0.9, stop_sequences=["x"])
    assert request.sampling == SamplingParams(temperature=0.7, max_tokens=9, stop=("x",))
    assert request.overridden == ("temperature", "top_p")
    assert _read(OVERRIDE, temperature=0, turn_type="side").overridden == ()


@pytest.mark.parametrize(
    ("thinking", "arguments"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "adaptive", "display": "omitted"}, {}),
        (None, {}),
    ],
)
def test_thinking_is_an_argument_of_the_template(thinking: Any, arguments: dict[str, bool]) -> None:
    assert json.loads(_read(thinking=thinking).inputs.arguments) == arguments


def test_template_arguments_may_also_be_said_in_their_own_words() -> None:
    said = _read(thinking={"type": "disabled"}, chat_template_kwargs={"enable_thinking": True, "depth": 2})
    assert json.loads(said.inputs.arguments) == {"enable_thinking": True, "depth": 2}


def test_work_that_a_client_does_beside_the_conversation_is_known_by_its_words() -> None:
    title = "Generate a concise, sentence-case title for this talk."
    assert _read(system=title).facts.kind is TurnKind.SIDE
    assert _read(system=title, tools=[LOOK]).facts.kind is TurnKind.MAIN


def test_two_requests_of_a_coding_client_are_one_growing_conversation() -> None:
    config = ServingConfig(served_name="served_name")
    one, two = (load(f"claude_code_{n}") for n in (1, 2))
    first, second = (read(wire.body, wire.headers, config).request for wire in (one, two))
    assert second.messages[: len(first.messages)] == first.messages
    assert [m.role for m in second.messages[len(first.messages) :]] == ["assistant", "tool"]
    assert first.inputs == second.inputs and first.inputs.tools
    assert first.facts.session == second.facts.session == session_of_metadata(one.body)
    assert read({**one.body}, {}, config).request.facts.session == first.facts.session


def test_tools_reach_the_template_in_its_own_shape() -> None:
    (tool,) = _read(tools=[LOOK | {"cache_control": {"type": "ephemeral"}}]).inputs.tools
    function = {"name": "Look", "description": "Looks.", "parameters": LOOK["input_schema"]}
    assert json.loads(tool) == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([LOOK, SEARCH], ["Look"]),
        ([SEARCH], []),
        ([LOOK | {"type": "custom"}, {"name": "Bare"}], ["Look", "Bare"]),
        ([LOOK | {"defer_loading": True}], ["Look"]),
        ([], []),
    ],
)
def test_only_tools_with_a_type_of_their_own_are_left_out(tools: list[Any], names: list[str]) -> None:
    assert [json.loads(tool)["function"]["name"] for tool in _read(tools=tools).inputs.tools] == names


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ANY_TOOL),
        ({"type": "auto", "disable_parallel_tool_use": True}, ANY_TOOL),
        ({"type": "any"}, ToolChoice(required=True)),
        ({"type": "tool", "name": "Look"}, ToolChoice(required=True, name="Look")),
        ({"type": "none"}, ToolChoice(allowed=False)),
    ],
)
def test_a_tool_choice_is_read_and_none_hides_the_tools(choice: Any, expected: ToolChoice) -> None:
    request = _read(tools=[LOOK], tool_choice=choice)
    assert request.tool_choice == expected
    assert len(request.inputs.tools) == expected.allowed


def test_any_tool_is_required_only_where_there_is_one() -> None:
    assert not _read(tools=[SEARCH], tool_choice={"type": "any"}).tool_choice.required


@pytest.mark.parametrize(
    ("headers", "fields", "session"),
    [
        ({"X-Session-Id": "head"}, {"session_id": "body", "metadata": _user_id("meta")}, "head"),
        ({}, {"session_id": "body", "metadata": _user_id("meta")}, "body"),
        ({}, {"metadata": _user_id(" meta ")}, "meta"),
        ({}, {"metadata": {"user_id": "someone"}}, None),
    ],
)
def test_metadata_names_the_session_where_nothing_else_does(
    headers: dict[str, str], fields: dict[str, Any], session: str | None
) -> None:
    facts = _read(CONFIG, headers | {"x-turn-type": "side"}, **fields).facts
    assert (facts.session, facts.kind) == (session, TurnKind.SIDE)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "s",
        {},
        {"user_id": 3},
        {"user_id": "{"},
        {"user_id": "[" * 100_000},
        {"user_id": '["session_id"]'},
        {"user_id": '{"session_id": "\\ud83d"}'},
        _user_id(None),
        _user_id(7),
        _user_id("  "),
        _user_id("s" * 257),
    ],
)
def test_metadata_without_a_usable_session_names_none(metadata: Any) -> None:
    assert session_of_metadata({"metadata": metadata}) is None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 3}, "model", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "assistant", "content": "It is {"}]}, "messages", "invalid_value"),
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"temperature": 1.1}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": math.nan}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": 1.5}, "top_k", "invalid_type"),
        ({"stop_sequences": "x"}, "stop_sequences", "invalid_type"),
        ({"stop_sequences": ["a", 3]}, "stop_sequences[1]", "invalid_type"),
        ({"stop_sequences": [""]}, "stop_sequences", "invalid_value"),
        ({"stop_sequences": ["a" * 513]}, "stop_sequences", "invalid_value"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "invalid_value"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"thinking": True}, "thinking", "invalid_type"),
        ({"thinking": {"type": "deep"}}, "thinking.type", "invalid_value"),
        ({"thinking": {"type": []}}, "thinking.type", "invalid_value"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": [LOOK] * 257}, "tools", "invalid_value"),
        ({"tools": ["Look"]}, "tools[0]", "invalid_type"),
        ({"tools": [LOOK, {"input_schema": {}}]}, "tools[1].name", "missing_required_parameter"),
        ({"tools": [{"name": 3}]}, "tools[0].name", "invalid_type"),
        ({"tools": [{"name": "n", "type": 3}]}, "tools[0].type", "invalid_type"),
        ({"tools": [{"name": "n", "input_schema": []}]}, "tools[0].input_schema", "invalid_type"),
        ({"tools": [{"name": "n", "input_schema": {"title": "\ud83d"}}]}, "tools[0]", "invalid_value"),
        ({"tool_choice": "auto"}, "tool_choice", "invalid_type"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type", "invalid_value"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tool_choice": {"type": "tool", "name": "Look"}}, "tool_choice", "invalid_value"),
        ({"session_id": 7}, "session_id", "invalid_type"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    refused = _refusal(**fields)
    assert (refused.status, refused.param, refused.code) == (400, param, code)
    assert param in refused.message


def test_another_model_is_a_404() -> None:
    refused = _refusal(model="big")
    assert (refused.status, refused.code) == (404, "model_not_found")
    assert "big" in refused.message and "tiny" in refused.message


def test_counting_reads_the_same_prompt_and_needs_no_length() -> None:
    fields = {"system": "Be brief.", "tools": [LOOK, SEARCH], "thinking": {"type": "disabled"}}
    request = _read(**fields)
    body = _body(**fields)
    del body["max_tokens"]
    assert read_count(body, CONFIG) == (request.messages, request.inputs)
    assert read_count(_body(), CONFIG) == ((USER,), TemplateInputs())


def test_counting_takes_a_conversation_that_ends_with_an_answer() -> None:
    answered = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    messages, _ = read_count(_body(messages=answered), CONFIG)
    assert [m.role for m in messages] == ["user", "assistant"]


@pytest.mark.parametrize("fields", [{"model": "big"}, {"messages": []}, {"tools": "x"}])
def test_counting_refuses_what_an_answer_would_refuse(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        read_count(_body(**fields), CONFIG)
    assert caught.value.json() == _refusal(**fields).json()


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (_refusal(max_tokens=None), "invalid_request_error"),
        (invalid_key(given=True), "authentication_error"),
        (ApiError(403, "No."), "permission_error"),
        (_refusal(model="big"), "not_found_error"),
        (body_too_large(5), "request_too_large"),
        (overloaded(), "rate_limit_error"),
        (internal(), "api_error"),
        (unavailable(), "overloaded_error"),
        (ApiError(529, "Later."), "overloaded_error"),
        (ApiError(409, "Twice."), "invalid_request_error"),
        (ApiError(504, "Too slow."), "api_error"),
    ],
)
def test_a_refusal_has_the_type_of_its_status(refused: ApiError, kind: str) -> None:
    assert error(refused) == {"type": "error", "error": {"type": kind, "message": refused.message}}


def test_the_overflow_says_first_that_the_prompt_is_too_long() -> None:
    overflow = context_overflow(100, 120)
    assert error(overflow)["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {overflow.message}",
    }


def test_an_answer_that_must_be_json_is_held_to_the_schema() -> None:
    asked = _read(output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "array"}}})
    assert asked.sampling.json_schema == '{"type":"array"}'
    assert _read(output_config={"effort": "low"}).sampling.json_schema == ""
    assert _refusal(output_config={"format": {"type": "json_schema"}}).param == "output_config.format.schema"
