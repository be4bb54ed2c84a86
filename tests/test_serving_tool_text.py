"""Tools and calls told in text where the chat template knows none."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer

from clawrl.messages import Message, TemplateInputs, ToolCall
from clawrl.serving.dialects.tools import function_tool
from clawrl.serving.parsing.formats import FORMATS
from clawrl.serving.parsing.reader import AnswerReader
from clawrl.serving.template import ChatRenderer
from clawrl.serving.tool_text import knows_tools, told_in_text
from tests.tiny_model import CHAT_TEMPLATE, build_tiny_model

LOOK = function_tool("look", "Looks somewhere.", {"type": "object", "properties": {"at": {"type": "string"}}})
CALL = ToolCall(id="c", name="look", arguments='{"at":  "the sky"}')


def test_a_template_knows_tools_if_it_asks_for_them() -> None:
    assert knows_tools("{% if tools %}{{ tools | tojson }}{% endif %}")
    assert not knows_tools(CHAT_TEMPLATE) and not knows_tools("{{ messages[0].toolset }}")


def test_tools_are_described_at_the_end_of_the_system_message_or_in_one_of_their_own() -> None:
    user = Message(role="user", content="hi")
    alone = told_in_text([user], [LOOK])
    assert [message.role for message in alone] == ["system", "user"]
    assert json.dumps(json.loads(LOOK)["function"]) in alone[0].content
    behind = told_in_text([Message(role="system", content="Be kind."), user], [LOOK])
    assert behind[0].content == f"Be kind.\n\n{alone[0].content}" and behind[1:] == [user]
    assert told_in_text([user], []) == [user]


def test_a_call_that_is_told_in_text_is_read_back_as_it_was() -> None:
    (told,) = told_in_text([Message(role="assistant", content="I look.", tool_calls=(CALL,))], [])
    assert not told.tool_calls
    reader = AnswerReader(FORMATS["hermes"], prompt_tail="", tools=[LOOK], new_id=lambda: "c")
    reader.feed(told.content)
    reader.finish(truncated=False)
    assert reader.message().tool_calls == (CALL,) and reader.message().content == "I look."


def test_the_renderer_tells_tools_in_text_only_to_a_template_that_knows_none(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(tmp_path / "m"))
    messages = [Message(role="user", content="hi"), Message(role="assistant", tool_calls=(CALL,))]
    inputs = TemplateInputs(tools=(LOOK,))
    told = ChatRenderer(tokenizer, 500).text(messages, inputs)
    assert "Looks somewhere." in told and '<tool_call>\n{"name": "look", "arguments": {"at":  "the sky"}}' in told
    tokenizer.chat_template = "{% for t in tools %}<{{ t.function.name }}>{% endfor %}" + CHAT_TEMPLATE
    knowing = ChatRenderer(tokenizer, 500).text(messages, inputs)
    assert knowing.startswith("<look>") and "<tool_call>" not in knowing
