"""What went wrong over somebody's words: errors quote them, so that logs get an error's name and place, and no more.

The words go where the conversation lies: a failed judgement's ``detail``, sealed in the ledger. An exception that a
replica raises is logged by whoever runs it, message and all; a judge or teacher therefore returns its `Trouble`, and
`answered` raises it where it is caught.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_Answer = TypeVar("_Answer")
_FRAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why there is no answer: ``name`` may be logged, ``words`` may quote the conversation."""

    name: str
    words: str


class Unanswered(RuntimeError):
    """A judge or a teacher came back with trouble; its text says nothing of what was said."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.name)
        self.trouble = trouble


async def or_trouble(asked: Awaitable[_Answer]) -> _Answer | Trouble:
    """The answer, or what any exception says."""
    try:
        return await asked
    except Exception as error:
        return Trouble(name=name_of(error), words=words_of(error))


def answered(answer: _Answer | Trouble) -> _Answer:
    """Raises `Unanswered`."""
    if isinstance(answer, Trouble):
        raise Unanswered(answer)
    return answer


def name_of(error: BaseException) -> str:
    """The kind of error and where it was raised, innermost last; no word of it."""
    if isinstance(error, Unanswered):
        return error.trouble.name
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places}" if places else type(error).__name__


def words_of(error: BaseException) -> str:
    """All that it says, for where the conversation may be quoted."""
    return error.trouble.words if isinstance(error, Unanswered) else f"{type(error).__name__}: {error}"
