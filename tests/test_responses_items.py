"""The input of a responses request: items become messages, and what cannot be shown to the model is refused."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Message, ToolCall
from clawrl.serving.dialects.responses.items import parse_input
from clawrl.serving.errors import ApiError

THINK = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Look first."}],
}
SAY = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "One moment."}],
}
RESULT = {"type": "function_call_output", "id": "fco_1", "call_id": "call_a", "output": "3 files"}


def _call(call_id: str = "call_a", **fields: Any) -> dict[str, Any]:
    call = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": "ls", "arguments": '{"dir":"."}'}
    return call | {"status": "completed"} | fields


def _parse(*items: dict[str, Any]) -> tuple[Message, ...]:
    return parse_input({"input": list(items)})


def _said(content: str = "", reasoning: str = "", *calls: str) -> Message:
    made = tuple(ToolCall(id=call, name="ls", arguments='{"dir":"."}') for call in calls)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=made)


def test_a_string_is_one_user_message() -> None:
    assert parse_input({"input": "hi"}) == (Message(role="user", content="hi"),)


def test_every_role_is_read_and_developer_is_system() -> None:
    messages = _parse(*({"role": role, "content": role} for role in ["developer", "system", "user", "assistant"]))
    assert [m.role for m in messages] == ["system", "system", "user", "assistant"]
    assert [m.content for m in messages] == ["developer", "system", "user", "assistant"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": " b"}], "a b"),
        ([{"type": "output_text", "text": "a", "annotations": []}], "a"),
        ([], ""),
        (None, ""),
    ],
)
def test_content_may_be_text_or_text_parts_or_nothing(content: Any, text: str) -> None:
    assert _parse({"type": "message", "role": "user", "content": content})[0].content == text


def test_a_tool_round_of_a_coding_agent_is_five_messages() -> None:
    parts = [{"type": "input_text", "text": "Be brief."}, {"type": "input_text", "text": " Ask nothing."}]
    messages = _parse(
        {"type": "message", "id": "msg_d", "role": "developer", "content": parts},
        {
            "type": "message",
            "id": "msg_u",
            "role": "user",
            "content": [{"type": "input_text", "text": "What is here?"}],
        },
        THINK | {"encrypted_content": None},
        SAY,
        _call(),
        RESULT,
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    )
    assert messages == (
        Message(role="system", content="Be brief. Ask nothing."),
        Message(role="user", content="What is here?"),
        _said("One moment.", "Look first.", "call_a"),
        Message(role="tool", content="3 files", tool_call_id="call_a"),
        Message(role="user", content="And now?"),
    )


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        pytest.param([_call("a"), _call("b")], [_said("", "", "a", "b")], id="calls join"),
        pytest.param([SAY, _call("a"), _call("b")], [_said("One moment.", "", "a", "b")], id="calls join the text"),
        pytest.param([THINK, _call("a")], [_said("", "Look first.", "a")], id="calls join the reasoning"),
        pytest.param([SAY, SAY], [_said("One moment."), _said("One moment.")], id="text after text begins anew"),
        pytest.param(
            [SAY, THINK, SAY], [_said("One moment."), _said("One moment.", "Look first.")], id="so does reasoning"
        ),
        pytest.param([SAY, _call("a"), SAY], [_said("One moment.One moment.", "", "a")], id="text after a call joins"),
        pytest.param(
            [_call("a"), THINK, _call("b")], [_said("", "Look first.", "a", "b")], id="reasoning between calls"
        ),
        pytest.param([THINK, THINK, SAY], [_said("One moment.", "Look first." * 2)], id="reasoning joins reasoning"),
        pytest.param([THINK], [_said("", "Look first.")], id="reasoning may stand alone"),
    ],
)
def test_what_the_assistant_did_at_once_is_one_message(items: list[dict[str, Any]], messages: list[Message]) -> None:
    assert list(_parse(*items)) == messages


def test_the_result_of_a_call_parts_two_messages_of_the_assistant() -> None:
    messages = _parse(_call("a"), RESULT | {"call_id": "a"}, _call("b"), RESULT | {"call_id": "b"})
    assert [m.role for m in messages] == ["assistant", "tool", "assistant", "tool"]
    assert [m.tool_call_id for m in messages] == [None, "a", None, "b"]


def test_reasoning_without_text_is_left_out() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "xyz"}
    assert _parse({"role": "user", "content": "hi"}, sealed, SAY)[1:] == (_said("One moment."),)


def test_a_summary_stands_in_for_reasoning_that_is_not_there() -> None:
    parts = [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}]
    assert _parse({"type": "reasoning", "summary": parts})[0].reasoning == "First.\n\nThen."
    assert _parse(THINK | {"summary": parts})[0].reasoning == "Look first."


def test_an_empty_message_of_the_assistant_stays() -> None:
    assert _parse({"role": "user", "content": "hi"}, {"role": "assistant", "content": ""})[1] == _said()


def test_a_call_in_a_namespace_has_the_name_that_the_model_knows() -> None:
    (message,) = _parse(_call(name="close", namespace="agents", arguments=None))
    assert message.tool_calls == (ToolCall(id="call_a", name="agents__close", arguments="{}"),)


def test_arguments_stay_as_they_were_written() -> None:
    assert _parse(_call(arguments='{ "n": 1.0 }'))[0].tool_calls[0].arguments == '{ "n": 1.0 }'


def test_the_output_of_a_call_may_be_text_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert _parse(RESULT | {"output": parts})[0].content == "ab"


IMAGE = {"type": "input_image", "image_url": "data:"}


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ({"role": "robot", "content": "x"}, "input[1].role", "invalid_value"),
        ({"role": "tool", "content": "x"}, "input[1].role", "invalid_value"),
        ({"role": 3, "content": "x"}, "input[1].role", "invalid_type"),
        ({"content": "x"}, "input[1].role", "missing_required_parameter"),
        ({"role": "user", "content": 3}, "input[1].content", "invalid_type"),
        ({"role": "user", "content": ["x"]}, "input[1].content[0]", "invalid_type"),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            "input[1].content[0].text",
            "missing_required_parameter",
        ),
        ({"role": "user", "content": [{"type": "what"}]}, "input[1].content[0].type", "invalid_value"),
        ({"role": "user", "content": [{"type": []}]}, "input[1].content[0].type", "invalid_value"),
        ({"role": "user", "content": "\ud83d"}, "input[1].content", "invalid_value"),
        ({"role": "user", "content": [IMAGE]}, "input[1].content[0]", "unsupported_parameter"),
        (RESULT | {"output": [IMAGE]}, "input[1].output[0]", "unsupported_parameter"),
        (RESULT | {"output": None}, "input[1].output", "missing_required_parameter"),
        (RESULT | {"call_id": 1}, "input[1].call_id", "invalid_type"),
        (_call(name=None), "input[1].name", "missing_required_parameter"),
        (_call(call_id=None), "input[1].call_id", "missing_required_parameter"),
        (_call(arguments={}), "input[1].arguments", "invalid_type"),
        (_call(namespace=1), "input[1].namespace", "invalid_type"),
        ({"type": "reasoning", "content": "x"}, "input[1].content", "invalid_type"),
        ({"type": "reasoning", "summary": [{"type": "reasoning_text"}]}, "input[1].summary[0].type", "invalid_value"),
        ({"type": "custom_tool_call", "input": "x"}, "input[1].type", "unsupported_parameter"),
        ({"type": "item_reference", "id": "msg_1"}, "input[1].type", "unsupported_parameter"),
        ({"type": "web_search_call", "id": "ws_1"}, "input[1].type", "unsupported_parameter"),
        ({"type": {}}, "input[1].type", "unsupported_parameter"),
    ],
)
def test_a_wrong_item_is_named_by_its_path(item: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        _parse({"role": "user", "content": "hi"}, item)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert param.removesuffix(".type") in caught.value.message


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (None, "missing_required_parameter"),
        ([], "invalid_value"),
        ([{"type": "reasoning", "summary": []}], "invalid_value"),
        (7, "invalid_type"),
        ({"role": "user"}, "invalid_type"),
        ("\ud83d", "invalid_value"),
    ],
)
def test_input_must_say_something(given: Any, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_input({"input": given})
    assert (caught.value.param, caught.value.code) == ("input", code)
