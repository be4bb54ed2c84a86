"""One answer, read as it is written: reasoning, text and tool calls out of the text of a model.

In: the end of the rendered prompt, the tools, then pieces of text, however cut. Out: parts that are final, in order.
Text and reasoning leave at once, but for what may become a mark and for whitespace at the end. A tool call waits until
it is whole or, if the answer is streamed, until `HELD_CHARACTERS` of its body are sound, and then leaves as it is
written. A call that is wrong, or
that the end of the answer cuts off, is text, exactly as it was written; no JSON is ever repaired. If part of it had
left by then, a wrong call raises `MalformedCall`, and one cut off by the token limit stays as it is. A closing mark
within a string of a call closes nothing, but such a call waits until it is whole. Without tools the marks of calls are
text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clawrl.messages import Message, ToolCall
from clawrl.serving.parsing.calls import CallBody
from clawrl.serving.parsing.formats import AnswerFormat
from clawrl.serving.parsing.parts import Call, Part, Reasoning, Text
from clawrl.serving.parsing.prompt import said_before
from clawrl.serving.parsing.regions import Edge, Region, Regions, Span
from clawrl.serving.parsing.whitespace import Prose, Thoughts

HELD_CHARACTERS = 256


class MalformedCall(Exception):
    """A tool call went wrong after the client had got part of it: the answer can neither go on nor be taken back."""


@dataclass(slots=True, kw_only=True)
class _OpenCall:
    """A region of calls: its opening mark and the number of its first call.

    ``leaving``: parts of it may be handed out. ``doubtful``: a closing mark was in a string, or a string has no end.
    """

    mark: str
    first: int
    body: CallBody
    leaving: bool = False
    doubtful: bool = False

    @property
    def sound(self) -> bool:
        """True when enough of it is known to be right."""
        return len(self.body) >= HELD_CHARACTERS and self.body.ready and not self.doubtful


@dataclass(slots=True, kw_only=True)
class _Handed:
    """A call as far as it has left."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


def new_call_id() -> str:
    """Unique, also for clients that remove what is no letter or digit."""
    return "call_" + secrets.token_hex(12)


class AnswerReader:
    """``tools`` are function tools in OpenAI's shape, each as JSON text.

    Unless ``streamed``, no call leaves before it is whole.
    """

    def __init__(
        self,
        answer_format: AnswerFormat,
        *,
        prompt_tail: str,
        tools: Sequence[str],
        streamed: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._shape = answer_format.calls
        self._names = frozenset(json.loads(tool)["function"]["name"] for tool in tools)
        self._streamed = streamed
        self._new_id = new_id
        fields = dict(answer_format.fields)
        if not self._names:
            fields.pop(Region.CALL, None)
        self._regions = Regions(fields)
        self._prose = Prose(verbatim=answer_format.verbatim)
        self._thoughts = Thoughts()
        self._call: _OpenCall | None = None
        self._parts: list[Part] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Handed] = []
        for span in self._regions.feed(said_before(answer_format, prompt_tail)):
            self._take(span)
        self._parts.clear()
        self._text.clear()

    def feed(self, text: str) -> list[Part]:
        for span in self._regions.feed(text):
            self._take(span)
        return self._handed_out()

    def finish(self, truncated: bool) -> list[Part]:
        """The rest. ``truncated``: the model did not end by itself. Afterwards nothing may be fed."""
        unread = ""
        for span in self._regions.finish():
            # An unfinished closing mark is no part of the body.
            if span.region is Region.CALL and self._call is not None and not self._call.body.in_string:
                unread = span.written
            else:
                self._take(span)
        if self._call is not None:
            self._end(self._call, unread, truncated=truncated)
        self._say(self._prose.end(), final=True)
        return self._handed_out()

    def message(self) -> Message:
        """All that was handed out, as the client will replay it."""
        return Message(
            role="assistant",
            content="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.name, arguments="".join(call.arguments)) for call in self._calls
            ),
        )

    def _handed_out(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _take(self, span: Span) -> None:
        if span.region is Region.TEXT:
            self._say(span.written)
        elif span.region is Region.CALL:
            self._take_call(span)
        elif span.edge is Edge.INSIDE:
            self._think(span.written)
        elif span.edge is Edge.CLOSE:
            self._prose.after_reasoning()

    def _say(self, text: str, *, final: bool = False) -> None:
        if leaving := text if final else self._prose.add(text):
            self._text.append(leaving)
            self._parts.append(Text(text=leaving))

    def _think(self, text: str) -> None:
        if leaving := self._thoughts.add(text):
            self._reasoning.append(leaving)
            self._parts.append(Reasoning(text=leaving))

    def _take_call(self, span: Span) -> None:
        if self._call is None:
            assert self._shape is not None
            body = CallBody(self._shape, self._names)
            self._call = _OpenCall(mark=span.written, first=len(self._calls), body=body)
        elif span.edge is Edge.INSIDE:
            self._write(self._call, span.written)
        elif self._call.body.in_string:
            self._call.doubtful = True
            self._regions.go_on()
            self._write(self._call, span.written)
        elif self._call.body.whole:
            self._accept(self._call)
        else:
            self._give_back(self._call, span.written, "its JSON is not whole")

    def _write(self, call: _OpenCall, text: str) -> None:
        for at, char in enumerate(text):
            if not call.body.add(char):
                self._give_back(call, "", call.body.problem)
                self._regions.reject(text[at:])
                return
            # Decided character by character, so that the outcome cannot depend on the chunking.
            call.leaving = call.leaving or (self._streamed and call.sound)
        if call.leaving:
            self._hand_out(call)

    def _hand_out(self, call: _OpenCall) -> None:
        self._prose.after_call()
        for index, draft in enumerate(call.body.drafts, start=call.first):
            if not draft.ready or draft.name is None:
                return
            if index == len(self._calls):
                handed = _Handed(id=self._new_id(), name=draft.name)
                self._calls.append(handed)
                self._parts.append(Call(index=index, id=handed.id, name=handed.name))
            if arguments := draft.take():
                self._calls[index].arguments.append(arguments)
                self._parts.append(Call(index=index, arguments=arguments))

    def _accept(self, call: _OpenCall) -> None:
        self._hand_out(call)
        self._call = None

    def _give_back(self, call: _OpenCall, closing: str, problem: str) -> None:
        if call.leaving:
            name = call.body.drafts[-1].name or call.body.drafts[0].name
            raise MalformedCall(
                f"The model's call of '{name}' is malformed ({problem}) after part of it was sent. Please try again."
            )
        self._call = None
        self._say(call.mark + call.body.written + closing)

    def _end(self, call: _OpenCall, unread: str, *, truncated: bool) -> None:
        """Of a call whose region is still open. One that is whole needs no closing mark if the model ended there."""
        if call.body.whole and not truncated:
            self._accept(call)
        elif not (call.leaving and truncated):
            self._give_back(call, unread, "its JSON is not whole")
