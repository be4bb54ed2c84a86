"""What a chat body may say, what is ignored, and what is refused under which name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from clawrl.messages import Message, SamplingParams, TurnKind
from clawrl.serving.chat_request import ChatRequest, parse_chat_request
from clawrl.serving.config import SamplingDefaults, ServingConfig
from clawrl.serving.errors import ApiError

CONFIG = ServingConfig(served_name="tiny")
OVERRIDE = ServingConfig(served_name="tiny", sampling=SamplingDefaults(temperature=0.7, override=True))


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields


def _parse(config: ServingConfig = CONFIG, **fields: Any) -> ChatRequest:
    return parse_chat_request(_body(**fields), config)


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse(**fields)
    assert caught.value.message
    return caught.value


def test_a_minimal_body_takes_every_default_from_the_config() -> None:
    assert _parse() == ChatRequest(
        model="tiny",
        messages=(Message(role="user", content="hi"),),
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=256, stop=()),
        overridden=(),
        stream=False,
        include_usage=False,
        logprobs=False,
        session=None,
        kind=TurnKind.MAIN,
        ends_session=False,
        group=None,
    )


def test_raw_bytes_and_a_decoded_object_mean_the_same() -> None:
    assert parse_chat_request(json.dumps(_body(top_p=0.5)).encode(), CONFIG) == _parse(top_p=0.5)


def test_null_is_the_same_as_absent_for_every_optional_field() -> None:
    names = ["temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "stream"]
    names += ["stream_options", "logprobs", "top_logprobs", "tools", "functions", "response_format", "logit_bias"]
    names += ["presence_penalty", "frequency_penalty", "min_p", "repetition_penalty", "session_id", "turn_type"]
    assert _parse(**dict.fromkeys([*names, "session_done"])) == _parse()


def test_fields_that_clients_send_for_others_are_ignored() -> None:
    extra = {"store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k"}
    extra |= {"parallel_tool_calls": True, "reasoning_effort": "low", "chat_template_kwargs": {"x": 1}, "zzz": [1]}
    assert _parse(**extra, enable_thinking=True, tool_choice="auto", strict=True) == _parse()


def test_values_that_change_nothing_are_accepted() -> None:
    neutral = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "min_p": 0, "repetition_penalty": 1.0}
    neutral |= {"logit_bias": {}, "tools": [], "functions": [], "response_format": {"type": "text"}, "top_logprobs": 0}
    assert _parse(**neutral, seed=7) == _parse()


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
    request = _parse(stream=True, stream_options={"include_usage": True}, logprobs=True)
    assert (request.stream, request.include_usage, request.logprobs) == (True, True, True)
    assert not _parse(stream=True, stream_options={}).include_usage
    assert not _parse(stream_options={"include_usage": True}).include_usage


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
    headers = {"X-Session-Id": "head", "x-turn-type": "side", "X-SESSION-DONE": "no"}
    request = parse_chat_request(_body(session_id="body", turn_type="main", session_done=True), CONFIG, headers)
    assert (request.session, request.kind, request.ends_session) == ("head", TurnKind.SIDE, False)


def test_the_default_turn_type_comes_from_the_config() -> None:
    assert _parse(ServingConfig(served_name="tiny", default_turn_type="side")).kind is TurnKind.SIDE


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
        ({"presence_penalty": 9}, "presence_penalty", "invalid_value"),
        ({"session_id": 7}, "session_id", "invalid_type"),
        ({"session_id": "s" * 257}, "session_id", "invalid_value"),
        ({"turn_type": "other"}, "turn_type", "invalid_value"),
        ({"session_done": []}, "session_done", "invalid_type"),
        ({"response_format": "json"}, "response_format", "invalid_type"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    error = _refusal(**fields)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert param in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"n": 0},
        {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"top_logprobs": 3},
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_what_the_engine_cannot_honour_is_refused_by_name_with_a_remedy(fields: dict[str, Any]) -> None:
    (name,) = fields
    error = _refusal(**fields)
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert f"'{name}'" in error.message
    assert len(error.message.split(". ")) >= 2


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff{}", b"[" * 100_000, b'{"temperature": NaN}', b'{"n": ' + b"9" * 5000 + b"}", b"[]", b"null"],
)
def test_a_body_that_is_no_json_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat_request(raw, CONFIG)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_a_body_beyond_the_limit_is_a_413() -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat_request(b" " * 101, ServingConfig(served_name="tiny", max_body_bytes=100))
    assert caught.value.status == 413


def test_another_model_is_a_404() -> None:
    error = _refusal(model="gpt-9")
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert "gpt-9" in error.message and "tiny" in error.message
