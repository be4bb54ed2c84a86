"""The blocks of a messages body: what becomes of each, in which order, and what is refused by its path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clawrl.messages import Message, ToolCall
from clawrl.serving.dialects.messages.content import parse_messages
from clawrl.serving.errors import ApiError

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def _parse(*messages: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    return parse_messages({"messages": list(messages)} | fields)


def _user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def _text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text} | fields


def _use(id: str, name: str, **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _use("t", "n").items() if key != name}


def _result(id: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content} | fields


def _refusal(*messages: dict[str, Any], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse(*messages, **fields)
    assert caught.value.param is not None and caught.value.param in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be brief.", "Be brief."),
        ([_text("Be brief."), _text("Be kind.", cache_control={"type": "ephemeral"})], "Be brief.\nBe kind."),
    ],
)
def test_the_system_prompt_comes_first(system: Any, text: str) -> None:
    assert _parse(_user(_text("hi")), system=system) == (
        Message(role="system", content=text),
        Message(role="user", content="hi"),
    )


@pytest.mark.parametrize("system", [None, "", []])
def test_an_empty_system_prompt_is_no_message(system: Any) -> None:
    assert _parse(_user(_text("hi")), system=system) == (Message(role="user", content="hi"),)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_string_and_one_text_block_are_the_same_content(role: str) -> None:
    block = _text("said", cache_control={"type": "ephemeral"}, citations=None)
    as_text, as_block = _parse({"role": role, "content": "said"}, {"role": role, "content": [block]})
    assert as_text == as_block == Message(role=role, content="said")


def test_a_system_message_stays_in_the_middle_of_the_list() -> None:
    roles = [
        m.role for m in _parse(_user(_text("a")), {"role": "system", "content": "b"}, _user(_text("c")), system="s")
    ]
    assert roles == ["system", "user", "system", "user"]


def test_text_blocks_are_lines_but_an_answer_is_taken_as_it_was_written() -> None:
    blocks = [_text("one"), _text("two")]
    user, assistant = _parse(_user(*blocks), _assistant(*blocks))
    assert (user.content, assistant.content) == ("one\ntwo", "onetwo")


def test_an_answer_keeps_reasoning_text_and_calls_apart() -> None:
    blocks = (
        {"type": "thinking", "thinking": "The size ", "signature": "x"},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "thinking", "thinking": "is needed."},
        _text("I look."),
        _use("t1", "Look", path="Größe.txt", depth=2),
        _use("t2", "Wait"),
    )
    assert _parse(_assistant(*blocks)) == (
        Message(
            role="assistant",
            content="I look.",
            reasoning="The size is needed.",
            tool_calls=(
                ToolCall(id="t1", name="Look", arguments='{"path":"Größe.txt","depth":2}'),
                ToolCall(id="t2", name="Wait", arguments="{}"),
            ),
        ),
    )


def test_tool_results_are_messages_before_the_text_of_the_same_message() -> None:
    blocks = (_text("And now?"), _result("t1", "3 files"), _result("t2", [_text("a"), _text("b")]))
    assert _parse(_user(*blocks)) == (
        Message(role="tool", content="3 files", tool_call_id="t1"),
        Message(role="tool", content="a\nb", tool_call_id="t2"),
        Message(role="user", content="And now?"),
    )


def test_a_message_of_results_only_says_nothing_for_the_user() -> None:
    assert [m.role for m in _parse(_user(_result("t1", "x")))] == ["tool"]
    assert [m.role for m in _parse(_user())] == ["user"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (_result("t", None), ""),
        (_result("t", "fine", is_error=False), "fine"),
        (_result("t", "no such file", is_error=True), "Error: no such file"),
        (_result("t", "error: no such file", is_error=True), "error: no such file"),
        (_result("t", None, is_error=True), "Error: "),
        (_result("t", [{"type": "tool_reference", "tool_name": "Fetch"}, _text("x")]), "Fetch\nx"),
    ],
)
def test_a_tool_result_tells_what_came_of_the_call(result: dict[str, Any], text: str) -> None:
    assert _parse(_user(result))[0].content == text


def test_a_tool_loop_of_a_coding_client_reads_as_one_conversation() -> None:
    opening = [
        _user(_text("<note>\nBe careful.\n</note>"), _text("list the files")),
        {"role": "system", "content": [_text("# Place\nA temp folder.", cache_control={"type": "ephemeral"})]},
    ]
    later = [
        opening[0],
        {"role": "system", "content": "# Place\nA temp folder."},
        _assistant(_use("toolu_1", "Shell", command="ls", description="x")),
        _user(_result("toolu_1", "a.txt", is_error=False, cache_control={"type": "ephemeral"})),
    ]
    system = [_text("client: 1.0;"), _text("You help.", cache_control={"type": "ephemeral"})]
    first, second = _parse(*opening, system=system), _parse(*later, system=system)
    assert second[: len(first)] == first
    assert [m.role for m in second] == ["system", "user", "system", "assistant", "tool"]
    assert second[3].tool_calls[0].id == second[4].tool_call_id == "toolu_1"
    assert json.loads(second[3].tool_calls[0].arguments) == {"command": "ls", "description": "x"}


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"content": "x"}, "messages[1].role", "missing_required_parameter"),
        ({"role": "user"}, "messages[1].content", "missing_required_parameter"),
        ({"role": "tool", "content": "x"}, "messages[1].role", "invalid_value"),
        ({"role": 3, "content": "x"}, "messages[1].role", "invalid_type"),
        ({"role": "user", "content": 3}, "messages[1].content", "invalid_type"),
        ({"role": "user", "content": "\ud83d"}, "messages[1].content", "invalid_value"),
        (_user("x"), "messages[1].content[0]", "invalid_type"),
        (_user({"text": "x"}), "messages[1].content[0].type", "invalid_value"),
        (_user({"type": []}), "messages[1].content[0].type", "invalid_value"),
        (_user({"type": "text"}), "messages[1].content[0].text", "missing_required_parameter"),
        (_user(_text("a"), {"type": "text", "text": 1}), "messages[1].content[1].text", "invalid_type"),
        (_user(_use("t", "Look")), "messages[1].content[0].type", "invalid_value"),
        (_assistant(_result("t", "x")), "messages[1].content[0].type", "invalid_value"),
        ({"role": "system", "content": [_use("t", "Look")]}, "messages[1].content[0].type", "invalid_value"),
        (_assistant({"type": "thinking"}), "messages[1].content[0].thinking", "missing_required_parameter"),
        (_assistant(_without("id")), "messages[1].content[0].id", "missing_required_parameter"),
        (_assistant(_without("name")), "messages[1].content[0].name", "missing_required_parameter"),
        (_assistant(_without("input")), "messages[1].content[0].input", "missing_required_parameter"),
        (_assistant(_use("t", "n") | {"input": "{}"}), "messages[1].content[0].input", "invalid_type"),
        (_assistant(_use("t", "n", x="\ud83d")), "messages[1].content[0].input", "invalid_value"),
        (_user({"type": "tool_result"}), "messages[1].content[0].tool_use_id", "missing_required_parameter"),
        (_user(_result("t", 3)), "messages[1].content[0].content", "invalid_type"),
        (_user(_result("t", "x", is_error="no")), "messages[1].content[0].is_error", "invalid_type"),
        (_user(_result("t", [{"type": "odd"}])), "messages[1].content[0].content[0].type", "invalid_value"),
        (_user(_text("see"), IMAGE), "messages[1].content[1]", "unsupported_parameter"),
        (_user({"type": "document"}), "messages[1].content[0]", "unsupported_parameter"),
        (_user(_result("t", [IMAGE])), "messages[1].content[0].content[0]", "unsupported_parameter"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named_by_its_path(message: dict[str, Any], param: str, code: str) -> None:
    error = _refusal(_user(_text("hi")), message)
    assert (error.status, error.param, error.code) == (400, param, code)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"system": 3}, "system"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
    ],
)
def test_a_body_without_a_readable_conversation_is_refused(fields: dict[str, Any], param: str) -> None:
    assert _refusal(_user(_text("hi")), **fields).param == param
