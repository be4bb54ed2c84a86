"""What a responses body may say, what is ignored, what is refused under which name, and how a conversation goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clawrl.messages import Arrival, Message, SamplingParams, TurnId, TurnKind
from clawrl.serving.config import SamplingDefaults, ServingConfig
from clawrl.serving.dialects import responses
from clawrl.serving.dialects.responses.request import ResponsesAsked
from clawrl.serving.dialects.responses.tools import ToolName
from clawrl.serving.errors import ApiError
from clawrl.serving.request import ANY_TOOL, ModelRequest, ToolChoice
from clawrl.serving.sessions import make_arrival

CONFIG = ServingConfig(served_name="tiny")
OVERRIDE = ServingConfig(served_name="tiny", sampling=SamplingDefaults(temperature=0.7, override=True))
TARGET = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
CLOCK = {"type": "function", "name": "clock"}
CLOSE = {"type": "function", "name": "close", "description": "Closes one.", "strict": False, "parameters": TARGET}
AGENTS = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [CLOSE]}


def _read(config: ServingConfig = CONFIG, headers: dict[str, str] | None = None, **fields: Any) -> ResponsesAsked:
    return responses.read({"model": "tiny", "input": "hi"} | fields, headers or {}, config)


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _read(**fields)
    return caught.value


def _functions(asked: ResponsesAsked) -> list[Any]:
    return [json.loads(tool)["function"] for tool in asked.request.inputs.tools]


def test_a_minimal_body_takes_every_default_from_the_config() -> None:
    asked = _read()
    assert asked.request == ModelRequest(
        model="tiny",
        messages=(Message(role="user", content="hi"),),
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=256, stop=()),
        facts=asked.request.facts,
    )
    assert (asked.request.facts.session, asked.request.facts.kind) == (None, TurnKind.MAIN)
    assert asked.previous is None


def test_null_is_the_same_as_absent_for_every_optional_field() -> None:
    names = ["instructions", "temperature", "top_p", "top_k", "max_output_tokens", "tools", "tool_choice", "stream"]
    names += ["parallel_tool_calls", "reasoning", "include", "store", "previous_response_id", "metadata", "text"]
    names += ["truncation", "background", "conversation", "prompt", "top_logprobs", "session_id", "turn_type", "stop"]
    assert _read(**dict.fromkeys(names)) == _read()


def test_the_body_of_a_coding_agent_is_read_and_what_it_sends_for_others_is_ignored() -> None:
    extra = {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    extra |= {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
    }
    extra |= {"text": {"verbosity": "low"}, "truncation": "disabled", "service_tier": "auto", "user": "u", "zzz": [1]}
    extra |= {"stream_options": {"include_obfuscation": False}, "safety_identifier": "s", "max_tool_calls": 3}
    asked = _read(**extra, background=False, top_logprobs=0)
    assert asked.request == replace(_read().request, facts=asked.request.facts)
    assert asked.echo == _read().echo


def test_instructions_are_a_system_message_before_the_input() -> None:
    assert _read(instructions="Be kind.").request.messages == (
        Message(role="system", content="Be kind."),
        Message(role="user", content="hi"),
    )
    assert _read(instructions="").request.messages == _read().request.messages


def test_the_client_s_sampling_is_honoured() -> None:
    sampling = _read(temperature=0, top_p=0.5, top_k=5, max_output_tokens=9, stop="x").request.sampling
    assert sampling == SamplingParams(temperature=0.0, top_p=0.5, top_k=5, max_tokens=9, stop=("x",))


def test_the_names_that_chat_has_for_the_length_mean_nothing_here() -> None:
    assert _read(max_tokens=3, max_completion_tokens=4).request.sampling.max_tokens == 256


def test_override_replaces_the_distribution_of_main_turns_only() -> None:
    request = _read(OVERRIDE, temperature=0, max_output_tokens=3).request
    assert (request.sampling, request.overridden) == (SamplingParams(temperature=0.7, max_tokens=3), ("temperature",))
    assert _read(OVERRIDE, temperature=0, turn_type="side").request.sampling.greedy


def test_session_facts_come_from_the_headers_first() -> None:
    facts = _read(headers={"X-Session-Id": "head", "x-turn-type": "side"}, session_id="body").request.facts
    assert (facts.session, facts.kind) == ("head", TurnKind.SIDE)


def test_the_messages_tell_the_session_where_the_client_does_not() -> None:
    assert _read(input="Runtime: agent=main | sessionId=s7 | host=x\nhello").request.facts.session == "s7"


def test_arguments_of_the_template_are_passed_on() -> None:
    inputs = _read(chat_template_kwargs={"depth": 2}, enable_thinking=False).request.inputs
    assert json.loads(inputs.arguments) == {"depth": 2, "enable_thinking": False}


def test_a_function_tool_is_given_to_the_model() -> None:
    (function,) = _functions(_read(tools=[CLOSE]))
    assert function == {"name": "close", "description": "Closes one.", "parameters": TARGET}
    assert _functions(_read(tools=[CLOCK])) == [{"name": "clock", "parameters": {"type": "object", "properties": {}}}]


def test_the_tools_of_a_namespace_are_flattened_and_their_names_remembered() -> None:
    asked = _read(tools=[CLOSE, AGENTS])
    assert [function["name"] for function in _functions(asked)] == ["close", "agents__close"]
    assert asked.tools.names == {
        "close": ToolName(name="close"),
        "agents__close": ToolName(namespace="agents", name="close"),
    }


def test_hosted_tools_are_left_out_and_not_shown_as_offered() -> None:
    names = [
        "web_search",
        "web_search_preview_2025_03_11",
        "file_search",
        "code_interpreter",
        "image_generation",
        "mcp",
    ]
    asked = _read(tools=[{"type": name, "external_web_access": False} for name in names] + [CLOCK])
    assert [function["name"] for function in _functions(asked)] == ["clock"]
    assert [tool["name"] for tool in asked.echo["tools"]] == ["clock"]


def test_a_tool_is_shown_as_it_is_offered_and_never_as_strict() -> None:
    wished = CLOSE | {"strict": True, "defer_loading": True}
    assert _read(tools=[wished, AGENTS | {"tools": [wished]}]).echo["tools"] == [CLOSE, AGENTS]


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, ANY_TOOL),
        ("auto", ANY_TOOL),
        ("none", ToolChoice(allowed=False)),
        ("required", ToolChoice(required=True)),
        ({"type": "function", "name": "clock"}, ToolChoice(required=True, name="clock")),
        ({"type": "function", "name": "close", "namespace": "agents"}, ToolChoice(required=True, name="agents__close")),
    ],
)
def test_the_choice_of_a_tool_is_read(choice: Any, read: ToolChoice) -> None:
    request = _read(tools=[CLOCK, AGENTS], tool_choice=choice).request
    assert request.tool_choice == read
    assert len(request.inputs.tools) == (2 if read.allowed else 0)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"instructions": ["x"]}, "instructions", "invalid_type"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": "9"}, "max_output_tokens", "invalid_type"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": [1]}, "tools[0]", "invalid_type"),
        ({"tools": [CLOCK] * 257}, "tools", "invalid_value"),
        ({"tools": [AGENTS | {"tools": [CLOCK] * 257}]}, "tools", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [CLOCK | {"parameters": "x"}]}, "tools[0].parameters", "invalid_type"),
        ({"tools": [CLOCK | {"parameters": {"x": "\ud83d"}}]}, "tools[0].parameters", "invalid_value"),
        ({"tools": [CLOCK | {"description": 1}]}, "tools[0].description", "invalid_type"),
        ({"tools": [{"type": 1}]}, "tools[0].type", "invalid_type"),
        ({"tools": [AGENTS | {"tools": None}]}, "tools[0].tools", "invalid_type"),
        ({"tools": [AGENTS | {"name": None}]}, "tools[0].name", "missing_required_parameter"),
        (
            {"tools": [AGENTS | {"tools": [{"type": "function"}]}]},
            "tools[0].tools[0].name",
            "missing_required_parameter",
        ),
        ({"tools": [AGENTS, CLOCK | {"name": "agents__close"}]}, "tools[1].name", "invalid_value"),
        ({"tool_choice": "perhaps"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tool_choice": {"type": "function", "name": "close"}, "tools": [AGENTS]}, "tool_choice", "invalid_value"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"include": "x"}, "include", "invalid_type"),
        ({"include": [1]}, "include[0]", "invalid_type"),
        ({"store": "yes"}, "store", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"text": "json"}, "text", "invalid_type"),
        ({"text": {"format": "json"}}, "text.format", "invalid_type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing_required_parameter"),
        ({"truncation": "some"}, "truncation", "invalid_value"),
        ({"previous_response_id": 1}, "previous_response_id", "invalid_type"),
        ({"previous_response_id": "chatcmpl-1"}, "previous_response_id", "invalid_value"),
        ({"previous_response_id": "resp_"}, "previous_response_id", "invalid_value"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    error = _refusal(**fields)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert param.removesuffix(".name") in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_object"}}, "tools": [AGENTS]}, "text.format"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools[0].type"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [AGENTS | {"tools": [{"type": "custom", "name": "patch"}]}]}, "tools[0].tools[0].type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_with_a_remedy(fields: dict[str, Any], param: str) -> None:
    error = _refusal(**fields)
    assert (error.status, error.param, error.code) == (400, param, "unsupported_parameter")
    assert param.removesuffix(".type") in error.message
    assert len(error.message.split(". ")) >= 2


def test_another_model_is_a_404() -> None:
    error = _refusal(model="huge")
    assert (error.status, error.code) == (404, "model_not_found")


def test_the_body_of_an_error_is_nested() -> None:
    error = responses.error(_refusal(input=None))["error"]
    assert (error["param"], error["code"]) == ("input", "missing_required_parameter")


PAST = (Message(role="system", content="old"), Message(role="user", content="hello"))
LAST = Message(role="assistant", content="hi there")


def test_the_previous_turn_is_named_by_the_id_of_its_response() -> None:
    assert _read(previous_response_id="resp_abc").previous == TurnId("abc")


def _past(messages: tuple[Message, ...] = PAST, session: str | None = None, kind: TurnKind = TurnKind.MAIN) -> Arrival:
    return make_arrival(
        turn_id=TurnId("abc"),
        messages=messages,
        session=session,
        owner="o",
        kind=kind,
        ends_session=False,
        arrived_at=0.0,
    )


def test_a_request_that_goes_on_is_of_the_session_and_kind_of_the_turn_before_unless_it_says_otherwise() -> None:
    past = _past(session="s", kind=TurnKind.SIDE)
    silent, named = _read(previous_response_id="resp_abc"), _read(previous_response_id="resp_abc", session_id="t")
    assert responses.with_history(silent, past, LAST).request.facts.session == "s"
    assert responses.with_history(silent, past, LAST).request.facts.kind is TurnKind.SIDE
    assert responses.with_history(named, past, LAST).request.facts.session == "t"
    told = _read(previous_response_id="resp_abc", turn_type="main")
    assert responses.with_history(told, past, LAST).request.facts.kind is TurnKind.MAIN


@pytest.mark.parametrize(
    ("instructions", "past", "messages"),
    [
        (None, PAST, [*PAST, LAST]),
        ("new", PAST, [Message(role="system", content="new"), PAST[1], LAST]),
        ("new", PAST[1:], [Message(role="system", content="new"), PAST[1], LAST]),
        ("new", (), [Message(role="system", content="new"), LAST]),
    ],
)
def test_a_request_goes_on_from_the_turn_before(
    instructions: str | None, past: tuple[Message, ...], messages: list[Message]
) -> None:
    asked = _read(previous_response_id="resp_abc", instructions=instructions, input="and then?", temperature=0.5)
    joined = responses.with_history(asked, _past(past), LAST)
    assert list(joined.request.messages) == [*messages, Message(role="user", content="and then?")]
    assert joined.request.sampling == asked.request.sampling
    assert joined.previous == TurnId("abc")


def test_an_answer_that_must_be_json_is_held_to_the_schema_and_says_so() -> None:
    form = {"type": "json_schema", "name": "place", "schema": {"type": "object"}}
    asked = _read(text={"format": form})
    assert asked.request.sampling.json_schema == '{"type":"object"}'
    assert asked.echo["text"] == {"format": form}
    assert _read(text={"verbosity": "low"}).echo["text"] == {"format": {"type": "text"}}
