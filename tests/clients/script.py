"""What the scripted model writes, in the markup of a real one: ``<think>``, text, ``<tool_call>``.

It does what the last user message says. Each ``RUN: ...`` in it is one call of the first tool that is offered, the
rest of the line being its first argument; ``AND`` in such a line makes it several calls at once. After the results it
says what the first word of the last one is, and to anything else ``HEARD``. It always thinks first, but for an answer
that it is forced to give as a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from clawrl.messages import Message

HEARD = "I hear you."
RUNNING = "I will run it."
THOUGHT = "What is wanted here? One café\nand no more."
_RUN = re.compile(r"RUN: ([^\n]+)")


def written(messages: Sequence[Message], tools: Sequence[str], begun: str = "") -> str:
    """The model's text for this conversation. ``begun`` is what of it stands in the prompt already."""
    results, lines = _state(messages)
    offered = [json.loads(tool)["function"] for tool in tools]
    if offered and (begun or len(results) < len(lines)):
        line = lines[len(results)] if len(results) < len(lines) else "nothing"
        calls = "\n".join(_call(offered[0], word.strip()) for word in line.split(" AND "))
        text = calls if begun else f"{_thought()}{RUNNING}\n{calls}"
        if not text.startswith(begun):
            raise ValueError(f"the script cannot go on from {begun!r}")
        return text.removeprefix(begun)
    said = f"The result is {result_word(results[-1])}." if results else HEARD
    return _thought() + said


def result_word(result: str) -> str:
    """The first word in the result of a tool."""
    found = re.search(r"\w+", result)
    return found.group() if found else "nothing"


def _thought() -> str:
    return f"<think>\n{THOUGHT}\n</think>\n\n"


def _state(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """One result for each answer with calls since the last user message, and that message's lines to run."""
    results: list[str] = []
    before = ""
    for message in reversed(messages):
        if message.role == "user":
            return list(reversed(results)), _RUN.findall(message.content)
        if message.role == "tool" and before != "tool":
            results.append(message.content)
        before = message.role
    return list(reversed(results)), []


def _call(tool: dict[str, Any], word: str) -> str:
    """Arguments in a spelling that no library would choose: what is replayed verbatim can be told from what is not."""
    properties: dict[str, Any] = tool["parameters"].get("properties", {})
    first = next(iter(properties), "word")
    values = {first: json.dumps(word)} | {
        name: "5.0" for name, schema in properties.items() if schema.get("type") == "number"
    }
    arguments = ", ".join(f"{json.dumps(name)}:  {value}" for name, value in values.items())
    return f'<tool_call>\n{{"name": {json.dumps(tool["name"])}, "arguments": {{{arguments}}}}}\n</tool_call>'
