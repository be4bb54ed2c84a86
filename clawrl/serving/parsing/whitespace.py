"""Which whitespace of an answer belongs to it, and which only stands around its marks.

`Prose` is the text: newlines right behind marked-up text do not count, and whitespace at the end waits for what
comes next. `Thoughts` is the reasoning: without the newlines around it. Both return what may leave.
"""

from __future__ import annotations


class Prose:
    """``verbatim``: every character counts and nothing waits."""

    def __init__(self, *, verbatim: bool) -> None:
        self._verbatim = verbatim
        self._held = ""
        self._begun = False
        self._skipping = False  # newlines do not count until something else comes
        self._bare = False  # marked-up text has been and no text since

    def add(self, text: str) -> str:
        if self._verbatim:
            return text
        if self._skipping:
            text = text.lstrip("\n")
            self._skipping = not text
        text = self._held + text
        leaving = text.rstrip()
        self._held = text[len(leaving) :]
        if leaving:
            self._begun, self._bare = True, False
        return leaving

    def after_reasoning(self) -> None:
        self._skipping = self._bare = True
        if not self._begun:
            self._held = ""

    def after_call(self) -> None:
        self._skipping = self._bare = True
        self._held = ""

    def end(self) -> str:
        """Whitespace that ends the text; what only surrounds marked-up text is none."""
        held, self._held = self._held, ""
        return "" if self._bare else held


class Thoughts:
    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def add(self, text: str) -> str:
        text = self._held + (text if self._begun else text.lstrip("\n"))
        leaving = text.rstrip("\n")
        self._held = text[len(leaving) :]
        self._begun = self._begun or bool(leaving)
        return leaving
