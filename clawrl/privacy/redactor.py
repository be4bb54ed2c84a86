"""Takes out of a text, and of everything that carries text, what the rules say must not be kept.

What is found becomes the rule's name in brackets, ``[EMAIL]``. What was found anywhere in a turn is taken out of all of
it, so that an answer which repeats a secret without the words that gave it away does not keep it. A turn in which
anything was redacted comes back without its token ids, which would decode to it, and says so in ``withheld``.

Texts that were scanned are remembered by their digest, in memory and up to a bound: the history that every request of a
session brings along is scanned once. May be used by several threads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from clawrl.messages import (
    Arrival,
    Feedback,
    Judgement,
    Message,
    SamplingParams,
    TeacherTargets,
    TemplateInputs,
    ToolCall,
    Turn,
    Withheld,
)
from clawrl.privacy.config import RedactionConfig
from clawrl.privacy.folding import folded, places
from clawrl.privacy.presidio import PresidioFinder
from clawrl.privacy.rules import Span, rules_of

_Mapping = Callable[[str], str]
_REMEMBERED = 20_000
_SHORTEST_REPEATED = 6
"""Shorter finds are not looked for elsewhere: they would be parts of other words."""


class Finder(Protocol):
    def find(self, text: str) -> Iterable[Span]: ...


def finders_of(config: RedactionConfig) -> list[Finder]:
    """Raises `ValueError` where Presidio is asked for and cannot be had."""
    finders: list[Finder] = list(rules_of(config))
    if config.presidio is not None:
        finders.append(PresidioFinder(config.presidio))
    return finders


class Redactor:
    def __init__(self, finders: Iterable[Finder]) -> None:
        self._finders = list(finders)
        self._lock = threading.Lock()
        # Digests and places, no text.
        self._known: OrderedDict[bytes, tuple[Span, ...]] = OrderedDict()

    @property
    def on(self) -> bool:
        return bool(self._finders)

    def text(self, text: str) -> str:
        """With what was found replaced."""
        return _replaced(text, self._spans(text)) if text and self._finders else text

    def is_clean(self, text: str) -> bool:
        return not (text and self._finders and self._spans(text))

    def warm(self, turn: Arrival | Turn) -> None:
        """Scans what a turn says, so that whoever redacts it next needs no time."""
        if self._finders:
            _Pass(self).gather(turn)

    def arrival(self, arrival: Arrival) -> Arrival:
        if not self._finders:
            return arrival
        found = _Pass(self)
        found.gather(arrival)
        return found.redacted(arrival) if found.values else arrival

    def turn(self, turn: Turn) -> Turn:
        if not self._finders:
            return turn
        found = _Pass(self)
        found.gather(turn)
        if not found.values:
            return turn
        return without_ids(dataclasses.replace(found.redacted(turn), arrival=found.redacted(turn.arrival)))

    def feedback(self, feedback: Feedback) -> Feedback:
        return self._any(feedback)

    def judgement(self, judgement: Judgement) -> Judgement:
        return self._any(judgement)

    def targets(self, targets: TeacherTargets) -> TeacherTargets:
        hints = tuple(map(self.text, targets.hints))
        return targets if hints == targets.hints else dataclasses.replace(targets, hints=hints)

    def _any(self, value: Any) -> Any:
        if not self._finders:
            return value
        found = _Pass(self)
        found.gather(value)
        return found.redacted(value) if found.values else value

    def _spans(self, text: str) -> tuple[Span, ...]:
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        spans = tuple(_disjoint(self._found(text)))
        with self._lock:
            self._known[key] = spans
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return spans

    def _found(self, text: str) -> Iterator[Span]:
        for finder in self._finders:
            yield from finder.find(text)
        if (plain := folded(text)) is not None:
            was = places(text)
            for finder in self._finders:
                for start, end, name in finder.find(plain):
                    yield was[start], was[end - 1] + 1, name


class _Pass:
    """One turn: first everything is looked at, then what was found anywhere is taken out everywhere."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.values: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def gather(self, value: Any) -> None:
        for text in _texts(value):
            for start, end, name in self._redactor._spans(text):
                self.values[text[start:end]] = name

    def redacted(self, value: Any) -> Any:
        return _mapped(value, self._text, self._id)

    def _id(self, text: str) -> str:
        """Of a tool call: its output names the same one, and two that differ still do when nothing is left of them."""
        redacted = self._text(text)
        if redacted == text:
            return text
        return self._ids.setdefault(text, f"{redacted}-{len(self._ids) + 1}")

    def _text(self, text: str) -> str:
        text = self._redactor.text(text)
        # The longest first: one may be part of another.
        for secret in sorted(self.values, key=len, reverse=True):
            if len(secret) >= _SHORTEST_REPEATED:
                text = text.replace(secret, _mark(self.values[secret]))
                escaped = json.dumps(secret)[1:-1]
                if escaped != secret:
                    text = text.replace(escaped, _mark(self.values[secret]))
        return text


def without_ids(turn: Turn) -> Turn:
    """The turn as it may be stored: ids decode to the text, log-probs and spans are of nothing without them."""
    return dataclasses.replace(
        turn,
        prompt_ids=np.empty(0, np.int32),
        response_ids=np.empty(0, np.int32),
        response_logps=np.empty(0, np.float32),
        spans=(),
        reused_ids=0,
        withheld=Withheld.IDS,
    )


def _texts(value: Any) -> Iterator[str]:
    """Every text that `_mapped` would be given, without making copies of what carries it: most turns are clean."""
    match value:
        case str():
            if value:
                yield value
        case tuple():
            for item in value:
                yield from _texts(item)
        case Message():
            yield from filter(None, (value.content, value.reasoning, value.name, value.tool_call_id))
            for call in value.tool_calls:
                yield from filter(None, (call.id, call.name))
                yield from _json_texts(call.arguments)
        case TemplateInputs():
            for text in (*value.tools, value.arguments):
                yield from _json_texts(text)
        case SamplingParams():
            yield from filter(None, value.stop)
            yield from _json_texts(value.json_schema)
        case Arrival():
            yield from _texts((value.history, value.new_messages, value.sent or (), value.inputs))
        case Turn():
            yield from _texts((value.arrival, value.response_text, value.answer, value.sampling))
        case Feedback():
            yield from _texts(value.comment)
        case Judgement():
            yield from _texts((*value.hints, value.detail))
        case _:
            raise TypeError(f"{type(value).__name__} carries no text that is known here")


def _json_texts(text: str) -> list[str]:
    if not text or text == "{}":
        return []
    seen: list[str] = []

    def note(found: str) -> str:
        seen.append(found)
        return found

    _json_mapped(text, note)
    return seen


def _mapped(value: Any, of: _Mapping, of_id: _Mapping) -> Any:
    """A copy with ``of`` applied to every text that people, tools, models or judges wrote; ``of_id`` to calls' ids."""

    def each(part: Any) -> Any:
        return _mapped(part, of, of_id)

    match value:
        case None:
            return None
        case str():
            return of(value) if value else value
        case tuple():
            return tuple(each(item) for item in value)
        case ToolCall():
            return dataclasses.replace(
                value,
                id=of_id(value.id) if value.id else value.id,
                name=of(value.name),
                arguments=_json_mapped(value.arguments, of),
            )
        case Message():
            return dataclasses.replace(
                value,
                content=each(value.content),
                reasoning=each(value.reasoning),
                tool_calls=each(value.tool_calls),
                tool_call_id=of_id(value.tool_call_id) if value.tool_call_id else value.tool_call_id,
                name=each(value.name),
            )
        case TemplateInputs():
            return TemplateInputs(
                tools=tuple(_json_mapped(tool, of) for tool in value.tools), arguments=_json_mapped(value.arguments, of)
            )
        case SamplingParams():
            return dataclasses.replace(value, stop=each(value.stop), json_schema=_json_mapped(value.json_schema, of))
        case Arrival():
            return dataclasses.replace(
                value,
                history=each(value.history),
                new_messages=each(value.new_messages),
                sent=each(value.sent),
                inputs=each(value.inputs),
            )
        case Turn():
            return dataclasses.replace(
                value,
                arrival=each(value.arrival),
                response_text=each(value.response_text),
                answer=each(value.answer),
                sampling=each(value.sampling),
            )
        case Feedback():
            return dataclasses.replace(value, comment=each(value.comment))
        case Judgement():
            return dataclasses.replace(value, hints=each(value.hints), detail=each(value.detail))
    raise TypeError(f"{type(value).__name__} carries no text that is known here")


def _json_mapped(text: str, of: _Mapping) -> str:
    """JSON text stays JSON: only its strings are looked at, as what they say, not as how they are escaped."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return str(of(text)) if text else text
    changed = _json_values(value, of)
    return text if changed == value else json.dumps(changed)


def _json_values(value: Any, of: _Mapping) -> Any:
    if isinstance(value, str):
        return of(value) if value else value
    if isinstance(value, list):
        return [_json_values(item, of) for item in value]
    if isinstance(value, dict):
        return {(of(key) if key else key): _json_values(item, of) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10**7:
        # A number may be that of a card or a telephone.
        said = of(str(value))
        return value if said == str(value) else said
    return value


def _disjoint(spans: Iterable[Span]) -> list[Span]:
    """Those that overlap become one, under the name of the first."""
    whole: list[Span] = []
    for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        if whole and start < whole[-1][1]:
            before = whole.pop()
            start, end, name = before[0], max(before[1], end), before[2]
        whole.append((start, end, name))
    return whole


def _replaced(text: str, spans: Iterable[Span]) -> str:
    parts, at = [], 0
    for start, end, name in spans:
        parts += [text[at:start], _mark(name)]
        at = end
    return "".join([*parts, text[at:]])


def _mark(name: str) -> str:
    return f"[{name.upper()}]"
