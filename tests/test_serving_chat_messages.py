"""The messages of a chat body: roles, the forms of content, and what is refused by its path."""

from __future__ import annotations

from typing import Any

import pytest

from clawrl.messages import Message
from clawrl.serving.chat_messages import parse_messages
from clawrl.serving.errors import ApiError


def _parse(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return parse_messages({"messages": list(messages)})


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse({"role": "user", "content": "hi"}, fields)
    return caught.value


def test_every_role_is_read_and_developer_is_system() -> None:
    roles = ["developer", "system", "user", "assistant", "tool"]
    messages = _parse(*({"role": role, "content": role, "name": "n"} for role in roles))
    assert [m.role for m in messages] == ["system", "system", "user", "assistant", "tool"]


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


def test_content_may_be_missing() -> None:
    assert _parse({"role": "assistant", "tool_calls": []})[0].content == ""


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
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[1].tool_calls", "unsupported_parameter"),
    ],
)
def test_a_wrong_message_is_named_by_its_path(fields: dict[str, Any], param: str, code: str) -> None:
    error = _refusal(**fields)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert param in error.message
