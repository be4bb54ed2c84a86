"""Token ids in, final text out, piece by piece.

`TextStream` turns the ids that an engine samples into the text that a client may see. What it returns is
final: no later token changes it, it ends on a whole character, and it holds nothing that could still become a
stop string. All pieces joined equal the decode of all ids at once (special tokens skipped, but for those in ``keep``,
which are text like any other), cut before the stop string, however the ids were chunked. Of several stop strings the
one that is complete first wins, and of those complete at the same character the longest.

Only a short window of ids is decoded again, so that a token costs the same at any length of the answer. The
window moves because a left cut disturbs at most the first characters: a byte-level decoder is in step again
after three bytes, a SentencePiece one drops a leading space. (A SentencePiece decoder spoils a whole run of byte tokens
if one is wrong, also those whose text has left; for such invalid runs only, the joined text differs.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

_REPLACEMENT = "\ufffd"
_MAX_PENDING = 3  # an unfinished UTF-8 character is at most three bytes, hence at most three replacements
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_KEEP = 24  # ids left in the window after a cut: enough for four characters even at one byte a token


class Detokenizer(Protocol):
    """The part of a transformers tokenizer that a text stream needs."""

    @property
    def all_special_ids(self) -> list[int]: ...

    @property
    def added_tokens_decoder(self) -> dict[int, Any]: ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any: ...


class TextStream:
    """One response. ``push`` as ids arrive, ``finish`` once at the end; after a stop string both return ``""``."""

    def __init__(
        self, tokenizer: Detokenizer, stop: tuple[str, ...] = (), *, keep: frozenset[int] = frozenset()
    ) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty")
        self._tokenizer = tokenizer
        self._keep = keep
        self._special = _special_ids(tokenizer) - keep if keep else frozenset(tokenizer.all_special_ids)
        self._stop = stop
        self._window: list[int] = []
        self._text = ""  # the decoded window
        self._taken = 0  # characters of it that went on to the stop-string search
        self._held = ""  # final text that may be the beginning of a stop string
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """True once a stop string appeared; the text ended right before it."""
        return self._stopped

    def push(self, ids: Iterable[int]) -> str:
        if self._stopped:
            return ""
        # One by one, so that the outcome cannot depend on the chunking.
        return self._release("".join(self._take(int(i)) for i in ids))

    def finish(self) -> str:
        if self._stopped:
            return ""
        rest = self._release(self._text[self._taken :])
        self._taken = len(self._text)
        if not self._stopped:
            rest, self._held = rest + self._held, ""
        return rest

    def _take(self, token_id: int) -> str:
        """The text that this token makes final."""
        if self._silent(token_id):
            return ""
        self._window.append(token_id)
        self._text = self._decode(self._window)
        final = self._final_length()
        piece = self._text[self._taken : final]
        self._taken = max(self._taken, final)
        self._slide()
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        # Clean-up of spaces looks at neighbours and would change text that has already left.
        skip = not self._keep  # else the window holds no special token but those to keep
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        return text

    def _silent(self, token_id: int) -> bool:
        """Special tokens and ids of a padded vocabulary have no text; in the window they would only take room."""
        return token_id in self._special or self._tokenizer.convert_ids_to_tokens(token_id) is None

    def _final_length(self) -> int:
        """Up to where the decoded window cannot change: what trails as replacement characters may yet become text."""
        end = len(self._text)
        undecided = end if self._in_byte_run() else _MAX_PENDING
        while end > max(0, len(self._text) - undecided) and self._text[end - 1] == _REPLACEMENT:
            end -= 1
        return end

    def _in_byte_run(self) -> bool:
        """SentencePiece spells an unknown character as byte tokens; a run of them shows nothing until all is valid."""
        if not self._window or len(self._window) > 4 * _KEEP:
            return False
        return _BYTE_TOKEN.fullmatch(self._tokenizer.convert_ids_to_tokens(self._window[-1])) is not None

    def _slide(self) -> None:
        if len(self._window) < 2 * _KEEP:
            return
        for keep in range(_KEEP, _KEEP + 4):  # one of four neighbouring cuts lies between two characters
            tail = self._decode(self._window[-keep:])
            taken = len(tail) - (len(self._text) - self._taken)
            if taken > _MAX_PENDING and self._text.endswith(tail[_MAX_PENDING:]):
                self._window = self._window[-keep:]
                self._text, self._taken = tail, taken
                return

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self._stopped = True
            self._held = ""
            return text[: min(found)[1]]
        cut = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[cut:]
        return text[:cut]


def token_pieces(tokenizer: Detokenizer, ids: Iterable[int]) -> list[str]:
    """The text of each token, that of special ones too; joined it is the text of all.

    A character that takes several tokens stands at the last of them, and what never becomes one at the last of all.
    """
    stream = TextStream(tokenizer, keep=_special_ids(tokenizer))
    pieces = [stream.push([token_id]) for token_id in ids]
    if pieces:
        pieces[-1] += stream.finish()
    return pieces


def _special_ids(tokenizer: Detokenizer) -> frozenset[int]:
    """Also those that have no name of their own, such as reserved ones: a decode would leave them out as well."""
    added = (token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset(tokenizer.all_special_ids) | frozenset(added)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
