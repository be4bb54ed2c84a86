"""Tools in plain text, for chat templates that know nothing of them.

Such a template would leave out the tools and the calls without a word, and the model would be asked something else
than the client meant. So the tools are described at the end of the system message, and calls stand in the text of
the assistant's message, in the marks that the ``hermes`` format reads back. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from clawrl.messages import Message, ToolCall

_INSTRUCTION = """You can call these tools, each described by a JSON object on a line of its own:
<tools>
{tools}
</tools>
To call a tool, write a JSON object with its name and its arguments between these marks, and wait for the result:
<tool_call>
{{"name": "the name of the tool", "arguments": {{"the name of an argument": "its value"}}}}
</tool_call>"""
_VARIABLE = re.compile(r"\btools\b")


def knows_tools(chat_template: str) -> bool:
    return _VARIABLE.search(chat_template) is not None


def told_in_text(messages: Sequence[Message], tools: Sequence[str]) -> list[Message]:
    """The same conversation with its tools and calls as text."""
    told = [_with_calls(message) for message in messages]
    if not tools:
        return told
    described = "\n".join(json.dumps(json.loads(tool)["function"], ensure_ascii=False) for tool in tools)
    instruction = _INSTRUCTION.format(tools=described)
    if told and told[0].role == "system":
        before = f"{told[0].content}\n\n" if told[0].content else ""
        return [replace(told[0], content=before + instruction), *told[1:]]
    return [Message(role="system", content=instruction), *told]


def _with_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    parts = [message.content] if message.content else []
    return replace(message, content="\n".join([*parts, *map(_call, message.tool_calls)]), tool_calls=())


def _call(call: ToolCall) -> str:
    """Arguments as they were written, so that a model's own call is told in its own spelling."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>'
