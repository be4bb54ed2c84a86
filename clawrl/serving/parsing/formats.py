"""How models mark reasoning and tool calls in what they write, and which of the ways a chat template speaks of.

A format is data: a response template of transformers with the fields ``text``, ``reasoning`` and ``call``, and how the
body of a call is read, which the template leaves as text. ``hermes`` is the markup of Qwen and SmolLM, ``llama3`` that
of Llama 3.1 and later. An answer that is marked in another way, or not at all, is text: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from clawrl.serving.parsing.calls import CallShape

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """``calls`` is ``None`` where a model cannot call tools.

    ``visible`` are the special tokens whose text the reader must see, ``call_opening`` is what comes before the JSON
    of a call.
    """

    name: str
    fields: Mapping[str, Mapping[str, Any]] = field(hash=False)
    calls: CallShape | None = None
    visible: tuple[str, ...] = ()
    call_opening: str = ""

    @property
    def verbatim(self) -> bool:
        """True where nothing is marked, so that no whitespace can belong to a mark."""
        return len(self.fields) == 1


FORMATS = {
    known.name: known
    for known in (
        AnswerFormat(
            name="hermes",
            fields={
                "text": {},
                "reasoning": {"open": "<think>", "close": "</think>"},
                "call": {"open": "<tool_call>", "close": "</tool_call>"},
            },
            calls=CallShape(),
            visible=("<think>", "</think>", "<tool_call>", "</tool_call>"),
            call_opening="<tool_call>\n",
        ),
        AnswerFormat(
            name="llama3",
            fields={"text": {}, "call": {"open_pattern": r"\A\s*(?:<\|python_tag\|>\s*)?(?=\{)"}},
            calls=CallShape(arguments_key="parameters", separator=";"),
            visible=("<|python_tag|>",),
        ),
        AnswerFormat(name="plain", fields={"text": {}}),
    )
}


class SpecialTokens(Protocol):
    """The part of a transformers tokenizer that names its special tokens."""

    @property
    def all_special_ids(self) -> list[int]: ...

    @property
    def added_tokens_decoder(self) -> dict[int, Any]: ...

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any: ...


def format_for(chat_template: str, asked: str) -> AnswerFormat:
    """The format called ``asked``, or with ``auto`` the one that the chat template shows to the model."""
    if asked in FORMATS:
        return FORMATS[asked]
    if asked != AUTO:
        known = ", ".join(f"'{name}'" for name in (AUTO, *FORMATS))
        raise ValueError(f"unknown answer format '{asked}'; it must be one of {known}")
    if "<tool_call>" in chat_template or "</think>" in chat_template:
        return FORMATS["hermes"]
    if "<|start_header_id|>" in chat_template and '"parameters"' in chat_template:
        return FORMATS["llama3"]
    return FORMATS["plain"]


def visible_ids(answer_format: AnswerFormat, tokenizer: SpecialTokens) -> frozenset[int]:
    """The ids of those ``visible`` tokens that are special to the tokenizer, so that it would leave them out."""
    special = {*tokenizer.all_special_ids, *(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)}
    return frozenset(i for i in special if tokenizer.convert_ids_to_tokens(i) in answer_format.visible)
