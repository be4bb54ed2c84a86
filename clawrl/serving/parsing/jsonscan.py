"""JSON as it is being written: is it still sound, is it whole, and where do the members of its objects lie?

In: one character at a time of an object, or of a list of objects, and of several of these with ``separator`` between
them if there is one. Out: after each character the `State`, and `Mark`s for the objects and their members; nothing
deeper is marked. Strict JSON: nothing is repaired, and what is broken stays broken. Whitespace around it is sound.
Deeper than `MAX_DEPTH` is broken, because it could not come back inside a request, and so are half a surrogate pair
and a number beyond a double's range, because they cannot be sent.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

MAX_DEPTH = 56

_SPACE = " \t\n\r"
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_HEX = "0123456789abcdefABCDEF"
_ESCAPES = '"\\/bfnrt'
_NUMBER = {  # where each kind of character leads; "d" is a digit other than 0
    "start": {"-": "minus", "0": "zero", "d": "int"},
    "minus": {"0": "zero", "d": "int"},
    "zero": {".": "point", "e": "exponent"},
    "int": {"0": "int", "d": "int", ".": "point", "e": "exponent"},
    "point": {"0": "fraction", "d": "fraction"},
    "fraction": {"0": "fraction", "d": "fraction", "e": "exponent"},
    "exponent": {"-": "sign", "+": "sign", "0": "power", "d": "power"},
    "sign": {"0": "power", "d": "power"},
    "power": {"0": "power", "d": "power"},
}
_KINDS = {**{c: c for c in "-+.0"}, **{c: "d" for c in "123456789"}, "e": "e", "E": "e"}
_WHOLE_NUMBERS = {"zero", "int", "fraction", "power"}


class State(enum.Enum):
    """``COMPLETE``: what is written is whole; whitespace and, where there is one, a separator may follow."""

    SOUND = enum.auto()
    COMPLETE = enum.auto()
    BROKEN = enum.auto()


class MarkKind(enum.Enum):
    OBJECT = enum.auto()
    KEY = enum.auto()
    VALUE = enum.auto()
    VALUE_END = enum.auto()
    OBJECT_END = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """``at`` is the offset of the first character of it, for an end that behind the last. ``key`` is decoded."""

    kind: MarkKind
    at: int
    key: str = ""


class JsonScan:
    def __init__(self, *, separator: str = "") -> None:
        self._separator = separator
        self._due: list[str] = []  # the closing brackets, innermost last
        self._at = 0
        self._marks: list[Mark] = []
        self._key: list[str] | None = None  # the characters of the key being read
        self._left = ""  # of a word such as true, or of the digits of an escape
        self._code = 0  # of the escape being read
        self._half = False  # the first half of a surrogate pair was read, and the second must follow
        self._number = ""
        self._digits: list[str] = []
        self._step: Callable[[str], bool] = self._value
        self._state = State.SOUND

    @property
    def state(self) -> State:
        return self._state

    @property
    def in_string(self) -> bool:
        """True between the quotes of a string, where any text may stand."""
        return self._state is State.SOUND and self._step in (self._string, self._escape, self._escape_digit)

    def feed(self, char: str) -> list[Mark]:
        """What lies here. A number ends with the character behind it, everything else with its own last one."""
        if self._state is State.BROKEN:
            return []
        self._marks = []
        if self._step(char):
            whole = self._step == self._after and not self._due
            self._state = State.COMPLETE if whole else State.SOUND
        else:
            self._state = State.BROKEN
        self._at += 1
        return self._marks

    def _value(self, char: str) -> bool:
        return char in _SPACE or self._begin(char)

    def _first_item(self, char: str) -> bool:
        return self._close(char) if char == "]" else self._value(char)

    def _first_key(self, char: str) -> bool:
        return self._close(char) if char == "}" else self._next_key(char)

    def _next_key(self, char: str) -> bool:
        if char == '"':
            self._key = [char]
            self._step = self._string
            return True
        return char in _SPACE

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._step = self._value
            return True
        return char in _SPACE

    def _begin(self, char: str) -> bool:
        if not self._due and char not in "{[":
            return False
        if self._due == ["]"] and char != "{":
            return False
        if self._in_marked_object():
            self._mark(MarkKind.VALUE)
        if char in "{[":
            self._due.append("}" if char == "{" else "]")
            self._step = self._first_key if char == "{" else self._first_item
            if self._in_marked_object():
                self._mark(MarkKind.OBJECT)
            return len(self._due) <= MAX_DEPTH
        if char == '"':
            self._step = self._string
        elif char in _WORDS:
            self._left = _WORDS[char]
            self._step = self._word
        else:
            self._number = "start"
            self._digits.clear()
            self._step = self._digit
            return self._digit(char)
        return True

    def _string(self, char: str) -> bool:
        if self._key is not None:
            self._key.append(char)
        if char == "\\":
            self._step = self._escape
        elif self._half:
            return False
        elif char == '"':
            self._end_string()
        return char >= " "

    def _escape(self, char: str) -> bool:
        if self._key is not None:
            self._key.append(char)
        self._left, self._code = "uuuu" if char == "u" else "", 0
        self._step = self._escape_digit if self._left else self._string
        return char == "u" or (char in _ESCAPES and not self._half)

    def _escape_digit(self, char: str) -> bool:
        if self._key is not None:
            self._key.append(char)
        if char not in _HEX:
            return False
        self._left, self._code = self._left[1:], 16 * self._code + int(char, 16)
        if self._left:
            return True
        self._step = self._string
        second = 0xDC00 <= self._code <= 0xDFFF
        sound = second == self._half
        self._half = 0xD800 <= self._code <= 0xDBFF
        return sound

    def _end_string(self) -> None:
        if self._key is None:
            self._end_value(self._at + 1)
            return
        if self._in_marked_object():
            written = "".join(self._key)
            self._mark(MarkKind.KEY, at=self._at + 1 - len(written), key=json.loads(written))
        self._key = None
        self._step = self._colon

    def _word(self, char: str) -> bool:
        expected, self._left = self._left[0], self._left[1:]
        if not self._left:
            self._end_value(self._at + 1)
        return char == expected

    def _digit(self, char: str) -> bool:
        following = _NUMBER[self._number].get(_KINDS.get(char, ""))
        if following is not None:
            self._number = following
            self._digits.append(char)
            return True
        if self._number not in _WHOLE_NUMBERS or math.isinf(float("".join(self._digits))):
            return False
        self._end_value(self._at)
        return self._after(char)

    def _after(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if not self._due:
            self._step = self._value
            return char == self._separator
        if char == ",":
            self._step = self._next_key if self._due[-1] == "}" else self._value
            return True
        return self._close(char)

    def _close(self, char: str) -> bool:
        if char != self._due[-1]:
            return False
        if self._in_marked_object():
            self._mark(MarkKind.OBJECT_END, at=self._at + 1)
        self._due.pop()
        self._end_value(self._at + 1)
        return True

    def _end_value(self, at: int) -> None:
        if self._in_marked_object():
            self._mark(MarkKind.VALUE_END, at=at)
        self._step = self._after

    def _in_marked_object(self) -> bool:
        return len(self._due) <= 2 and self._due in (["}"], ["]", "}"])

    def _mark(self, kind: MarkKind, *, at: int | None = None, key: str = "") -> None:
        self._marks.append(Mark(kind=kind, at=self._at if at is None else at, key=key))
