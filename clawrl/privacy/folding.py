"""One way of writing for what can be written in many: full-width letters and digits, odd spaces and dashes, nothing.

Rules are written for plain text. A text that differs when folded is looked at once more, folded, and what is found is
told by its place in the text as it was.
"""

from __future__ import annotations

import unicodedata

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"


class _Table(dict[int, str]):
    """Of each character that was ever met, what is looked for in its place."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if char in _DASHES:
            plain = "-"
        elif unicodedata.category(char) == "Cf":
            # Soft hyphens, joiners, marks of direction: nobody sees them.
            plain = ""
        elif char.isdecimal():
            plain = str(unicodedata.decimal(char))
        else:
            plain = unicodedata.normalize("NFKC", char)
        self[code] = plain
        return plain


_TABLE = _Table()


def folded(text: str) -> str | None:
    """``None`` where that is the same text, as it mostly is."""
    if text.isascii() or all(_TABLE[ord(char)] == char for char in set(text)):
        return None
    return text.translate(_TABLE)


def places(text: str) -> list[int]:
    """For each character of the folded text, which character of ``text`` it was."""
    return [place for place, char in enumerate(text) for _ in _TABLE[ord(char)]]
