"""A simulated user with one fixed preference.

The preference is a pure rule (see `preferences`) and is never shown to the model: the model only sees what the user
*says*. A `Conversation` is a state machine without I/O: give it an answer, get the next message. Its question order
and wording come from the seed alone; `HELD_OUT_QUESTIONS` never occur.

A conversation: a question; thanks when the answer is accepted, a complaint when it is not; then the next question, and
after ``questions`` questions a goodbye that ends the session, so that the last answer gets its feedback too. With
``max_complaints`` above 0 a complaint asks for another answer, so often a question, before the user gives up on it in
words that still say no.
"""

import random
from dataclasses import dataclass

from clawrl.evaluation.preferences import Preference
from clawrl.evaluation.user_words import (
    GIVING_UP,
    GOODBYES,
    HELD_OUT_QUESTIONS,
    NEXT_QUESTION,
    THANKS,
    TRAINING_FORMS,
    TRAINING_TOPICS,
    Objection,
)

__all__ = ["HELD_OUT_QUESTIONS", "Conversation", "Move", "topic_of", "training_question"]

_TOPICS = {form.format(topic): topic for form in TRAINING_FORMS for topic in TRAINING_TOPICS}


def training_question(rng: random.Random) -> str:
    return rng.choice(TRAINING_FORMS).format(rng.choice(TRAINING_TOPICS))


def topic_of(question: str) -> str:
    """What a training question is about; any other question is a topic of its own."""
    return _TOPICS.get(question, question)


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

    def __init__(
        self, rng: random.Random, preference: Preference, *, questions: int = 1, max_complaints: int = 0
    ) -> None:
        if questions < 1 or max_complaints < 0:
            raise ValueError(f"a session needs a question: questions={questions}, max_complaints={max_complaints}")
        self._rng = rng
        self._preference = preference
        self._questions_left = questions
        self._max_complaints = max_complaints
        self._complaints = 0
        self._question = ""

    def opening(self) -> Move:
        """The first message; call once, before any `reply`."""
        return Move(text=self._ask(), question=self._question, objection=None)

    def reply(self, text: str, finish_reason: str | None) -> Move:
        """The message that follows an answer with this text."""
        wrong = self._preference.objection(text, finish_reason)
        if wrong is None:
            return self._move_on(self._rng.choice(THANKS), None)
        if self._complaints == self._max_complaints > 0:
            return self._move_on(self._rng.choice(GIVING_UP), wrong)
        complaint = self._rng.choice(self._preference.complaints[wrong])
        if self._max_complaints == 0:
            return self._move_on(complaint, wrong)
        self._complaints += 1
        return Move(text=complaint, question=self._question, objection=wrong)

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
