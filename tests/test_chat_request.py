"""What a chat body may say, what is ignored, and what is refused under which name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from clawrl.messages import NO_INPUTS, FinishReason, Message, SamplingParams, TemplateInputs, TurnId, TurnKind
from clawrl.serving.config import SamplingDefaults, ServingConfig
from clawrl.serving.dialects.base import AnswerFacts
from clawrl.serving.dialects.chat import error, read
from clawrl.serving.dialects.chat.request import MAX_ANSWERS, ChatAsked
from clawrl.serving.dialects.structured import MAX_SCHEMA_CHARS
from clawrl.serving.errors import ApiError, overloaded
from clawrl.serving.pieces import FinishPiece, TokenLogprob, Usage, WholeAnswer
from clawrl.serving.request import ANY_TOOL, ModelRequest, ToolChoice
from clawrl.serving.sessions import SessionFacts

CONFIG = ServingConfig(served_name="tiny")
OVERRIDE = ServingConfig(served_name="tiny", sampling=SamplingDefaults(temperature=0.7, override=True))
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def _ask(config: ServingConfig = CONFIG, headers: dict[str, str] | None = None, **fields: Any) -> ChatAsked:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields
    return read(body, headers or {}, config)


def _parse(config: ServingConfig = CONFIG, headers: dict[str, str] | None = None, **fields: Any) -> ModelRequest:
    return _ask(config, headers, **fields).request


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse(**fields)
    assert caught.value.message
    return caught.value


def test_a_minimal_body_takes_every_default_from_the_config() -> None:
    assert _ask() == ChatAsked(
        request=ModelRequest(
            model="tiny",
            messages=(Message(role="user", content="hi"),),
            sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=256, stop=()),
            facts=SessionFacts(session=None, kind=TurnKind.MAIN, ends=False, group=None, reason="the default"),
            inputs=NO_INPUTS,
            tool_choice=ANY_TOOL,
            overridden=(),
            answers=1,
            stream=False,
            logprobs=False,
        ),
        include_usage=False,
    )


def test_null_is_the_same_as_absent_for_every_optional_field() -> None:
    names = ["temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "stream"]
    names += ["stream_options", "logprobs", "top_logprobs", "tools", "functions", "response_format", "logit_bias"]
    names += ["presence_penalty", "frequency_penalty", "min_p", "repetition_penalty", "session_id", "turn_type"]
    names += ["tool_choice", "chat_template_kwargs", "enable_thinking", "prompt_cache_key", "group_id", "session_done"]
    assert _ask(**dict.fromkeys(names)) == _ask()


def test_fields_that_clients_send_for_others_are_ignored() -> None:
    extra = {"store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "strict": True, "zzz": [1]}
    extra |= {"parallel_tool_calls": True, "reasoning_effort": "low", "tool_choice": "auto"}
    assert _ask(**extra) == _ask()


def test_values_that_change_nothing_are_accepted() -> None:
    neutral = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "min_p": 0, "repetition_penalty": 1.0}
    neutral |= {"logit_bias": {}, "tools": [], "functions": [], "response_format": {"type": "text"}, "top_logprobs": 0}
    assert _ask(**neutral, chat_template_kwargs={}, seed=7) == _ask()


def test_the_client_s_sampling_is_honoured_and_typed() -> None:
    sampling = _parse(temperature=1, top_p=1, top_k=5, max_tokens=9, stop=["a", "b"]).sampling
    assert sampling == SamplingParams(temperature=1.0, top_p=1.0, top_k=5, max_tokens=9, stop=("a", "b"))
    assert type(sampling.temperature) is float and type(sampling.top_p) is float
    assert _parse(temperature=0).sampling.greedy
    assert _parse(top_k=-1).sampling.top_k == 0
    assert _parse(stop="x").sampling.stop == ("x",)
    assert _parse(stop=[]).sampling.stop == ()


def test_of_two_token_limits_the_smaller_wins() -> None:
    assert _parse(max_tokens=5, max_completion_tokens=9).sampling.max_tokens == 5
    assert _parse(max_tokens=9, max_completion_tokens=5).sampling.max_tokens == 5
    assert _parse(max_completion_tokens=7).sampling.max_tokens == 7


def test_stream_usage_and_logprobs_are_read() -> None:
    asked = _ask(stream=True, stream_options={"include_usage": True}, logprobs=True)
    assert (asked.request.stream, asked.include_usage, asked.request.logprobs) == (True, True, True)
    assert not _ask(stream=True, stream_options={}).include_usage
    assert not _ask(stream_options={"include_usage": True}).include_usage


def test_several_answers_may_be_asked_for() -> None:
    assert _parse(n=MAX_ANSWERS).answers == MAX_ANSWERS


def test_tools_reach_the_template_and_tell_nothing_where_none_may_be_called() -> None:
    request = _parse(tools=[LOOK])
    assert [json.loads(tool) for tool in request.inputs.tools] == [LOOK]
    assert request.tool_choice == ANY_TOOL
    forbidden = _parse(tools=[LOOK], tool_choice="none")
    assert forbidden.inputs.tools == () and forbidden.tool_choice == ToolChoice(allowed=False)


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"chat_template_kwargs": {"b": 1, "a": [True]}}, '{"a": [true], "b": 1}'),
        ({"enable_thinking": False}, '{"enable_thinking": false}'),
        ({"chat_template_kwargs": {"a": 1}, "enable_thinking": True}, '{"a": 1, "enable_thinking": true}'),
        (
            {"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True},
            '{"enable_thinking": false}',
        ),
    ],
)
def test_template_arguments_are_one_object_in_one_spelling(fields: dict[str, Any], arguments: str) -> None:
    assert _parse(**fields).inputs == TemplateInputs(arguments=arguments)


def test_override_replaces_the_distribution_of_main_turns_and_says_so() -> None:
    request = _parse(OVERRIDE, temperature=0, top_p=0.9, top_k=0, max_tokens=3, stop="x")
    assert request.sampling == SamplingParams(temperature=0.7, max_tokens=3, stop=("x",))
    assert request.overridden == ("temperature", "top_p")


def test_override_names_nothing_when_the_client_asked_nothing_else() -> None:
    assert _parse(OVERRIDE).overridden == ()
    assert _parse(OVERRIDE, temperature=0.7).overridden == ()


def test_override_leaves_side_turns_to_the_client() -> None:
    request = _parse(OVERRIDE, temperature=0, turn_type="side")
    assert request.sampling.greedy and request.overridden == ()


def test_without_override_the_client_s_values_stand() -> None:
    assert _parse(temperature=0, top_p=0.9).overridden == ()


def test_session_fields_come_from_the_headers_first() -> None:
    headers = {"X-Session-Id": "head", "x-turn-type": "side", "X-SESSION-DONE": "no", "X-Group-Id": "g"}
    facts = _parse(headers=headers, session_id="body", turn_type="main", session_done=True, group_id="h").facts
    assert (facts.session, facts.kind, facts.ends, facts.group) == ("head", TurnKind.SIDE, False, "g")


def test_the_default_turn_type_comes_from_the_config() -> None:
    assert _parse(ServingConfig(served_name="tiny", default_turn_type="side")).facts.kind is TurnKind.SIDE


@pytest.mark.parametrize(("tools", "kind"), [([], TurnKind.SIDE), ([LOOK], TurnKind.MAIN)])
def test_messages_and_tools_tell_the_kind_of_a_turn_that_says_nothing(tools: list[Any], kind: TurnKind) -> None:
    messages = [{"role": "system", "content": "You are a title generator"}, {"role": "user", "content": "plants"}]
    assert _parse(messages=messages, tools=tools).facts.kind is kind
    # What the model may call is not what tells the kind of the request.
    assert _parse(messages=messages, tools=tools, tool_choice="none").facts.kind is kind


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 3}, "model", "invalid_type"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"temperature": 10**400}, "temperature", "invalid_value"),
        ({"temperature": math.nan}, "temperature", "invalid_value"),
        ({"temperature": math.inf}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_p": False}, "top_p", "invalid_type"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"top_k": 1.5}, "top_k", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens", "invalid_type"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": "a" * 513}, "stop", "invalid_value"),
        ({"stop": 3}, "stop", "invalid_type"),
        ({"stop": ["a", 3]}, "stop[1]", "invalid_type"),
        ({"seed": "x"}, "seed", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stream_options": True}, "stream_options", "invalid_type"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"logprobs": 5}, "logprobs", "invalid_type"),
        ({"n": "2"}, "n", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": MAX_ANSWERS + 1}, "n", "invalid_value"),
        ({"presence_penalty": 9}, "presence_penalty", "invalid_value"),
        ({"tools": {"name": "look"}}, "tools", "invalid_type"),
        ({"chat_template_kwargs": ["enable_thinking"]}, "chat_template_kwargs", "invalid_type"),
        ({"enable_thinking": "no"}, "enable_thinking", "invalid_type"),
        ({"session_id": 7}, "session_id", "invalid_type"),
        ({"session_id": "s" * 257}, "session_id", "invalid_value"),
        ({"group_id": 7}, "group_id", "invalid_type"),
        ({"turn_type": "other"}, "turn_type", "invalid_value"),
        ({"session_done": []}, "session_done", "invalid_type"),
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"title": "x" * MAX_SCHEMA_CHARS}}}},
            "response_format",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    refusal = _refusal(**fields)
    assert (refusal.status, refusal.param, refusal.code) == (400, param, code)
    assert param in refusal.message


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"top_logprobs": 3},
        {"functions": [{"name": "f"}]},
    ],
)
def test_what_the_engine_cannot_honour_is_refused_by_name_with_a_remedy(fields: dict[str, Any]) -> None:
    (name,) = fields
    refusal = _refusal(**fields)
    assert (refusal.status, refusal.param, refusal.code) == (400, name, "unsupported_parameter")
    assert f"'{name}'" in refusal.message
    assert len(refusal.message.split(". ")) >= 2


def test_another_model_is_a_404() -> None:
    refusal = _refusal(model="gpt-9")
    assert (refusal.status, refusal.param, refusal.code) == (404, "model", "model_not_found")
    assert "gpt-9" in refusal.message and "tiny" in refusal.message


def test_an_error_leaves_in_openai_s_shape() -> None:
    assert error(overloaded()) == {
        "error": {
            "message": "The server is at its limit of waiting requests. Please try again later.",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }


@pytest.mark.parametrize("logprobs", [False, True])
def test_log_probs_are_shown_to_a_client_that_asked_for_them(logprobs: bool) -> None:
    writer = _ask(logprobs=logprobs).writer(AnswerFacts(turn_ids=(TurnId("t"),), model="tiny", created=5))
    finish = FinishPiece(
        finish_reason=FinishReason.STOP,
        spans=(),
        version=1,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        message=Message(role="assistant", content="a"),
    )
    whole = writer.whole([WholeAnswer(finish=finish, logprobs=(TokenLogprob(token="a", logprob=-1.0),))])
    assert (whole["choices"][0]["logprobs"] is not None) == logprobs


def test_an_answer_that_must_be_json_is_held_to_the_schema_and_does_not_train() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}}
    sampling = _parse(response_format=form).sampling
    assert json.loads(sampling.json_schema) == schema and sampling.filtered
    assert json.loads(_parse(response_format={"type": "json_object"}).sampling.json_schema) == {"type": "object"}
    plain = _parse(response_format={"type": "text"}).sampling
    assert plain.json_schema == "" and not plain.filtered


def test_an_answer_that_must_be_json_cannot_be_a_tool_call() -> None:
    refusal = _refusal(tools=[LOOK], response_format={"type": "json_object"})
    assert (refusal.status, refusal.param, refusal.code) == (400, "response_format", "unsupported_parameter")
    assert "tool_choice" in refusal.message
    asked = _parse(tools=[LOOK], tool_choice="none", response_format={"type": "json_object"})
    assert asked.sampling.json_schema and not asked.inputs.tools
