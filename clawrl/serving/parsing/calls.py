"""The body of one region of tool calls as it is being written, read by the rules of a `CallShape`.

A body is a JSON object with a name and an object of arguments, or a list of such objects, or several of them with a
separator. Other members are ignored. It is wrong, and stays so, from the first character that makes it no JSON, or
gives a name that no tool has, arguments that are no object, a name or arguments twice or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass, field

from clawrl.serving.parsing.jsonscan import JsonScan, Mark, MarkKind, State


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """The names of the two members of a call, and what stands between calls that are not in a list."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    separator: str = ""


@dataclass(slots=True, kw_only=True)
class Draft:
    """One call as far as it is written. ``arguments`` are those characters that nobody took yet."""

    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    begun: bool = False

    @property
    def ready(self) -> bool:
        """True when its name is known and its arguments have begun."""
        return self.begun and self.name is not None

    def take(self) -> str:
        taken = "".join(self.arguments)
        self.arguments.clear()
        return taken


class CallBody:
    def __init__(self, shape: CallShape, names: Set[str]) -> None:
        self._shape = shape
        self._names = names
        self._scan = JsonScan(separator=shape.separator)
        self._written: list[str] = []
        self._key = ""
        self._name: list[str] = []
        self._sink: list[str] | None = None  # where the characters of the current value go
        self.drafts: list[Draft] = []
        self.problem = ""

    def __len__(self) -> int:
        return len(self._written)

    @property
    def written(self) -> str:
        """All of it, as the model wrote it."""
        return "".join(self._written)

    @property
    def in_string(self) -> bool:
        return self._scan.in_string

    @property
    def ready(self) -> bool:
        """True when the first call could be handed out."""
        return bool(self.drafts) and self.drafts[0].ready

    @property
    def whole(self) -> bool:
        """True when it could end here: all JSON is closed and there is a call."""
        return not self.problem and self._scan.state is State.COMPLETE and bool(self.drafts)

    def add(self, char: str) -> bool:
        """False if the body is wrong with this character, which then is no part of it; ``problem`` says why."""
        if self._sink is not None:
            self._sink.append(char)
        marks = self._scan.feed(char)
        if self._scan.state is State.BROKEN:
            self.problem = "it is not JSON"
        for mark in marks:
            self.problem = self.problem or self._read(mark, char)
        if not self.problem:
            self._written.append(char)
        return not self.problem

    def _read(self, mark: Mark, char: str) -> str:
        """What is wrong with it, or nothing."""
        match mark.kind:
            case MarkKind.OBJECT:
                self.drafts.append(Draft())
                self._name = []
            case MarkKind.KEY:
                self._key = mark.key
            case MarkKind.VALUE if self._key == self._shape.name_key:
                return self._begin_name(char)
            case MarkKind.VALUE if self._key == self._shape.arguments_key:
                return self._begin_arguments(char)
            case MarkKind.VALUE_END:
                ended, self._sink = self._sink, None
                return self._end_name() if ended is self._name else ""
            case MarkKind.OBJECT_END if self.drafts[-1].name is None:
                return f"it has no '{self._shape.name_key}'"
            case MarkKind.OBJECT_END if not self.drafts[-1].begun:
                return f"it has no '{self._shape.arguments_key}'"
        return ""

    def _begin_name(self, char: str) -> str:
        if self.drafts[-1].name is not None:
            return f"it has '{self._shape.name_key}' twice"
        self._sink = self._name
        self._sink.append(char)
        return "" if char == '"' else f"its '{self._shape.name_key}' is no string"

    def _end_name(self) -> str:
        name: str = json.loads("".join(self._name))
        self.drafts[-1].name = name
        return "" if name in self._names else "there is no tool of that name"

    def _begin_arguments(self, char: str) -> str:
        draft = self.drafts[-1]
        if draft.begun:
            return f"it has '{self._shape.arguments_key}' twice"
        draft.begun = True
        self._sink = draft.arguments
        self._sink.append(char)
        return "" if char == "{" else f"its '{self._shape.arguments_key}' are no object"
