"""Texts as a judge is shown them: with roles, without reasoning, made to fit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clawrl.messages import Message

_OPENED, _CLOSED = "<think>", "</think>"
_REASONING = re.compile(r"<think>.*?</think>", re.DOTALL)


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters: the beginning and the end, with the middle left out."""
    if len(text) <= limit:
        return text
    gap = " ... "
    if limit <= 2 * len(gap):
        return text[:limit]
    head = (limit - len(gap)) // 2
    return text[:head] + gap + text[len(text) - (limit - len(gap) - head) :]


def after_reasoning(text: str) -> str:
    """What a model says after its last closed reasoning block; nothing when a block is still open."""
    said = text.rsplit(_CLOSED, 1)[-1]
    return "" if _OPENED in said else said


def without_reasoning(text: str) -> str:
    """What a reader of an answer sees: every reasoning block left out, also one whose start or end is missing."""
    seen = _REASONING.sub("", text).rsplit(_CLOSED, 1)[-1]
    return seen.split(_OPENED, 1)[0].strip()


def said(message: Message) -> str:
    """What a message says to others: its text and its tool calls, without reasoning."""
    text = without_reasoning(message.content) if message.role == "assistant" else message.content.strip()
    calls = [f"calls {call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([text, *calls] if text else calls)


def transcript(messages: Sequence[Message]) -> str:
    """One paragraph per message that says something, each with its role; reasoning of assistants is left out."""
    lines = [f"[{message.role}] {text}" for message in messages if (text := said(message))]
    return "\n".join(lines) or "(nothing)"
