"""A simulated user with one fixed preference: one short plain sentence.

The preference is a pure rule (`objection`, `accepts`) and is never shown to the model: the model only
sees what the user *says*. A `Conversation` is a state machine without I/O: give it an answer, get the
next message. Its question order and wording come from the seed alone; `HELD_OUT_QUESTIONS` never occur.

A conversation: a question; a complaint that asks again when the answer is not accepted (up to
``max_complaints`` a question, then the user gives up on it in words that still say no); thanks and the
next question when it is; and after ``questions`` questions a goodbye that ends the session, so that the
last answer gets its feedback too.
"""

import random
import re
from dataclasses import dataclass

from clawrl.evaluation.user_words import (
    COMPLAINTS,
    GIVING_UP,
    GOODBYES,
    HELD_OUT_QUESTIONS,
    NEXT_QUESTION,
    THANKS,
    TRAINING_FORMS,
    TRAINING_TOPICS,
    Objection,
)

__all__ = ["HELD_OUT_QUESTIONS", "Conversation", "Move", "Objection", "accepts", "objection", "training_question"]

MIN_WORDS, MAX_WORDS = 5, 30
_BULLET = re.compile(r"^\s*(?:[-*+•\u2013]|\(?\d{1,2}[.)])\s+")
_INLINE_NUMBER = re.compile(r"(?:^|\s)\(?\d{1,2}[.)]\s+(?=[A-Z*])")


def objection(text: str, finish_reason: str | None = "stop") -> Objection | None:
    """What the user holds against an answer, or None when it is accepted."""
    stripped = text.strip()
    words = len(stripped.split())
    if any(_BULLET.match(line) for line in stripped.splitlines()) or len(_INLINE_NUMBER.findall(stripped)) > 1:
        return Objection.LIST
    if len(stripped.splitlines()) > 1:
        return Objection.SEVERAL_LINES
    if words > MAX_WORDS:
        return Objection.TOO_LONG
    if finish_reason != "stop":
        return Objection.CUT_OFF
    if words < MIN_WORDS:
        return Objection.TOO_SHORT
    return None


def accepts(text: str, finish_reason: str | None = "stop") -> bool:
    return objection(text, finish_reason) is None


def training_question(rng: random.Random) -> str:
    return rng.choice(TRAINING_FORMS).format(rng.choice(TRAINING_TOPICS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The user's next message. ``objection`` is about the answer it replies to (None: accepted, or no answer yet).

    The answer to a message that ``ends_session`` interests nobody.
    """

    text: str
    question: str
    objection: Objection | None
    ends_session: bool = False


class Conversation:
    """One session of the simulated user; see the module's contract."""

    def __init__(self, rng: random.Random, *, questions: int = 2, max_complaints: int = 2) -> None:
        if questions < 1 or max_complaints < 0:
            raise ValueError(f"a session needs a question: questions={questions}, max_complaints={max_complaints}")
        self._rng = rng
        self._questions_left = questions
        self._max_complaints = max_complaints
        self._complaints = 0
        self._question = ""

    def opening(self) -> Move:
        """The first message; call once, before any `reply`."""
        return Move(text=self._ask(), question=self._question, objection=None)

    def reply(self, text: str, finish_reason: str | None) -> Move:
        """The message that follows an answer with this text."""
        wrong = objection(text, finish_reason)
        if wrong is None:
            return self._move_on(self._rng.choice(THANKS), None)
        if self._complaints < self._max_complaints:
            self._complaints += 1
            return Move(text=self._rng.choice(COMPLAINTS[wrong]), question=self._question, objection=wrong)
        return self._move_on(self._rng.choice(GIVING_UP), wrong)

    def _move_on(self, feeling: str, wrong: Objection | None) -> Move:
        if self._questions_left == 0:
            text = f"{feeling} {self._rng.choice(GOODBYES)}"
            return Move(text=text, question=self._question, objection=wrong, ends_session=True)
        lead = self._rng.choice(NEXT_QUESTION)
        return Move(text=f"{feeling} {lead}{self._ask()}", question=self._question, objection=wrong)

    def _ask(self) -> str:
        self._questions_left -= 1
        self._complaints = 0
        self._question = training_question(self._rng)
        return self._question
