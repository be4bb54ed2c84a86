"""The beginning of an answer that stands in the prompt already, and how to put one there.

A chat template may open the reasoning, or open and close it. A tool call is forced by beginning it. Nothing else at
the end of a prompt is the model's own, and a mark that somebody wrote further up is none.
"""

from __future__ import annotations

import json
import re

from clawrl.serving.parsing.formats import AnswerFormat

_JSON_STRING = r'"(?:[^"\\]|\\.)*"'


def said_before(answer_format: AnswerFormat, prompt_tail: str) -> str:
    """That part of the end of the rendered prompt which belongs to the answer."""
    pattern = ""
    if reasoning := answer_format.fields.get("reasoning"):
        pattern += rf"(?:{re.escape(reasoning['open'])}\s*)?(?:{re.escape(reasoning['close'])}\s*)?"
    if shape := answer_format.calls:
        begun = re.escape(answer_format.call_opening + _nameless_call(shape.name_key))
        pattern += rf"(?:{begun}(?: {_JSON_STRING}, {re.escape(json.dumps(shape.arguments_key))}:)?)?"
    found = re.search(pattern + r"\Z", prompt_tail)
    return found.group() if found else ""


def call_prefix(answer_format: AnswerFormat, prompt_tail: str, name: str | None = None) -> str:
    """What to put behind the prompt so that the answer can only be a tool call, of ``name`` if it is given.

    Reasoning that the template opened is closed. Raises ValueError where the format has no tool calls.
    """
    shape = answer_format.calls
    if shape is None:
        raise ValueError(
            f"the answer format '{answer_format.name}' has no tool calls, so that none can be forced; "
            "let the model choose, or set the format that it was trained on"
        )
    prefix = answer_format.call_opening + _nameless_call(shape.name_key)
    if name is not None:
        prefix += f" {json.dumps(name, ensure_ascii=False)}, {json.dumps(shape.arguments_key)}:"
    return thought_closed(answer_format, prompt_tail) + prefix


def thought_closed(answer_format: AnswerFormat, prompt_tail: str) -> str:
    """What to put behind the prompt so that the answer does not begin with reasoning: nothing, unless one is open."""
    reasoning = answer_format.fields.get("reasoning")
    opened = reasoning and prompt_tail.rstrip().endswith(reasoning["open"])
    return f"\n{reasoning['close']}\n\n" if reasoning and opened else ""


def _nameless_call(name_key: str) -> str:
    """It ends where a token may end, before the space, so that the model's own tokens follow."""
    return "{" + json.dumps(name_key) + ":"
