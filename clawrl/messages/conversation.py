"""What is said in a conversation, by whom, and with which tools at hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """``arguments`` is JSON text as it was written: by the model in an answer, by the client in a replay.

    ``id`` ties a tool's result to its call; clients rewrite it, so that nothing else may depend on it.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the chat. ``reasoning`` and ``tool_calls`` are an assistant's, ``tool_call_id`` is a tool's."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


NOTHING_SAID = Message(role="assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInputs:
    """What the chat template is given beside the messages.

    ``tools`` are function tools in OpenAI's shape, each as JSON text; ``arguments`` a JSON object of template arguments
    such as ``enable_thinking``. Text, so that a value can be compared, hashed and sealed as it is.
    """

    tools: tuple[str, ...] = ()
    arguments: str = "{}"


NO_INPUTS = TemplateInputs()
