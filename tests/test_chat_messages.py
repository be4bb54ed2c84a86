"""The messages of a chat body: roles, the forms of content, tool calls, and what is refused by its path."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Message, ToolCall
from clawrl.serving.dialects.chat.messages import parse_messages
from clawrl.serving.dialects.chat.response import message_json
from clawrl.serving.errors import ApiError

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":  5.0}'}}


def _parse(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return parse_messages({"messages": list(messages)})


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse({"role": "user", "content": "hi"}, fields)
    return caught.value


def _call(**fields: Any) -> dict[str, Any]:
    """A message with one good call, and a second with these fields."""
    return {"role": "assistant", "tool_calls": [CALL, CALL | fields]}


def test_every_role_is_read_and_developer_is_system() -> None:
    roles = ["developer", "system", "user", "assistant", "tool"]
    messages = _parse(*({"role": role, "content": role, "name": "n"} for role in roles))
    assert [m.role for m in messages] == ["system", "system", "user", "assistant", "tool"]
    assert {m.name for m in messages} == {"n"}


def test_the_same_role_may_speak_twice() -> None:
    messages = _parse(*({"role": role, "content": "x"} for role in ("user", "user", "assistant", "assistant")))
    assert [m.role for m in messages] == ["user", "user", "assistant", "assistant"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([], ""),
        ("", ""),
        (None, ""),
    ],
)
def test_content_may_be_text_or_text_parts_or_nothing(content: Any, text: str) -> None:
    assert _parse({"role": "user", "content": content})[0].content == text


@pytest.mark.parametrize("calls", [{}, {"tool_calls": []}, {"tool_calls": None}, {"tool_calls": [CALL]}])
def test_content_may_be_missing(calls: dict[str, Any]) -> None:
    assert _parse({"role": "assistant"} | calls)[0].content == ""


def test_tool_calls_are_read_in_order_with_their_arguments_as_they_were_written() -> None:
    other = {"id": "call2", "function": {"name": "wait"}}
    (message,) = _parse({"role": "assistant", "content": None, "tool_calls": [CALL, other]})
    assert message == Message(
        role="assistant",
        tool_calls=(
            ToolCall(id="call_1", name="look", arguments='{"at":  5.0}'),
            ToolCall(id="call2", name="wait", arguments="{}"),
        ),
    )


@pytest.mark.parametrize("fields", [{"id": None}, {"type": None}, {"function": {"name": "look", "arguments": None}}])
def test_null_is_the_same_as_absent_in_a_call(fields: dict[str, Any]) -> None:
    (name,) = fields
    without = {key: value for key, value in CALL.items() if key != name}
    if name == "function":
        without["function"] = {"name": "look"}
    bare = _parse({"role": "assistant", "tool_calls": [without]})
    assert _parse({"role": "assistant", "tool_calls": [CALL | fields]}) == bare


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_is_read_under_each_of_its_names(name: str) -> None:
    others = dict.fromkeys(["reasoning_content", "reasoning", "reasoning_text"], "")
    (message,) = _parse({"role": "assistant", "content": "green"} | others | {name: "hm"})
    assert message == Message(role="assistant", content="green", reasoning="hm")


def test_nobody_else_has_reasoning() -> None:
    assert _parse({"role": "user", "content": "x", "reasoning": "hm"})[0].reasoning == ""


def test_a_tool_s_message_says_which_call_it_answers_and_needs_no_name() -> None:
    content = [{"type": "text", "text": "a wall"}]
    messages = _parse(
        {"role": "tool", "content": content, "tool_call_id": "call_1"},
        {"role": "tool", "content": "", "name": "look"},
        {"role": "user", "content": "x", "tool_call_id": "call_1"},
    )
    assert messages == (
        Message(role="tool", content="a wall", tool_call_id="call_1"),
        Message(role="tool", name="look"),
        Message(role="user", content="x"),
    )


@pytest.mark.parametrize(
    "message",
    [
        Message(role="assistant", content="green"),
        Message(role="assistant"),
        Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="look", arguments='{"at": 5.0}'),)),
        Message(
            role="assistant",
            content="I look. ",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="call_1", name="look", arguments="{}"),
                ToolCall(id="call_2", name="wait", arguments="{}"),
            ),
        ),
    ],
)
def test_an_answer_that_the_client_sends_back_is_the_one_that_was_given(message: Message) -> None:
    assert _parse(message_json(message)) == (message,)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role", "invalid_value"),
        ({"role": 3, "content": "x"}, "messages[1].role", "invalid_type"),
        ({"content": "x"}, "messages[1].role", "missing_required_parameter"),
        ({"role": "user", "content": 3}, "messages[1].content", "invalid_type"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content", "invalid_type"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]", "invalid_type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", "missing_required_parameter"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[1].content[0].text", "invalid_type"),
        ({"role": "user", "content": [{"type": "what"}]}, "messages[1].content[0].type", "invalid_value"),
        ({"role": "user", "content": [{"type": []}]}, "messages[1].content[0].type", "invalid_value"),
        ({"role": "user", "content": "\ud83d"}, "messages[1].content", "invalid_value"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages[1].content[0]",
            "unsupported_parameter",
        ),
        (
            {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            "messages[1].content[1]",
            "unsupported_parameter",
        ),
        ({"role": "user", "content": "x", "name": 3}, "messages[1].name", "invalid_type"),
        ({"role": "tool", "content": "x", "tool_call_id": 3}, "messages[1].tool_call_id", "invalid_type"),
        ({"role": "assistant", "reasoning_content": 3}, "messages[1].reasoning_content", "invalid_type"),
        ({"role": "assistant", "reasoning": ["hm"]}, "messages[1].reasoning", "invalid_type"),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            "messages[1].function_call",
            "unsupported_parameter",
        ),
        ({"role": "assistant", "tool_calls": {"id": "c"}}, "messages[1].tool_calls", "invalid_type"),
        ({"role": "assistant", "tool_calls": ["c"]}, "messages[1].tool_calls[0]", "invalid_type"),
        (_call(type="custom"), "messages[1].tool_calls[1].type", "unsupported_parameter"),
        (_call(id=3), "messages[1].tool_calls[1].id", "invalid_type"),
        (_call(function=None), "messages[1].tool_calls[1].function", "missing_required_parameter"),
        (_call(function="look"), "messages[1].tool_calls[1].function", "invalid_type"),
        (_call(function={}), "messages[1].tool_calls[1].function.name", "missing_required_parameter"),
        (_call(function={"name": 3}), "messages[1].tool_calls[1].function.name", "invalid_type"),
        (
            _call(function={"name": "look", "arguments": {"at": 5}}),
            "messages[1].tool_calls[1].function.arguments",
            "invalid_type",
        ),
        (
            _call(function={"name": "look", "arguments": "\udc00"}),
            "messages[1].tool_calls[1].function.arguments",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_message_is_named_by_its_path(fields: dict[str, Any], param: str, code: str) -> None:
    error = _refusal(**fields)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert param.removesuffix(".type") in error.message
