"""What a simulated user may want of every answer: three preferences, each a pure rule on the text alone.

A `Preference` names what is wrong with an answer (`objection`; None when it is accepted) and has the words in which a
person complains of it. The rule is never shown to the model. ``instruction`` is what a person who knew their own wish
would write into a system prompt instead; measurements use it too. A rule speaks of words, lines and endings, so that
nobody has to guess whether an answer keeps to it.

Accepted of what SmolLM2-135M-Instruct answers at temperature 0.8, untaught; with ``instruction`` as system prompt; with
a complaint's wish after the question:

- one_sentence: 0 of 16; 5 of 16; 5 to 8 of 8, by wording
- no_lists: 2 of 16; 7 of 12; 6 to 8 of 8
- next_step: 0 of 16; 0 to 1 of 16 with wordings like it; 4 of 16; all counted when the rule did not yet ask for 8
  words, so at most as many today. A model of that size hardly manages to end with a question when it is told to, so its
  teacher has little to teach: this is the hard one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clawrl.evaluation.user_words import (
    NEXT_STEP_COMPLAINTS,
    NO_LISTS_COMPLAINTS,
    ONE_SENTENCE_COMPLAINTS,
    Objection,
)

_BULLET = re.compile(r"^\s*(?:[-*+•\u2013]|\(?\d{1,2}[.)])\s+")
_INLINE_NUMBER = re.compile(r"(?:^|\s)\(?\d{1,2}[.)]\s+(?=[A-Z*])")
_MARKUP = re.compile(r"\*\*|__|^\s*#{1,6}\s|^\s*\S[^.!?\n]{0,60}:\s*$", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?]+[.!?]+[\"')\]]*|[^.!?]+$")
_OFFER = re.compile(
    r"\b(?:let me know|feel free|just ask|i can also|i could also|if you(?:'d| would)? (?:like|want))\b", re.I
)
_ONE_SENTENCE_WORDS = (5, 30)
# Fewer words say nothing about a question: a bare "Why?" would end with a question too.
_FEWEST_WORDS = 8
_MOST_WORDS_WITH_OFFER = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """``objection(text, finish_reason)`` is pure. ``answer_tokens`` is the budget that its users ask for.

    ``words`` are the lengths in words, fewest and most, that the rule allows; None where it sets no limit.
    """

    name: str
    objection: Callable[[str, str | None], Objection | None]
    complaints: Mapping[Objection, tuple[str, ...]]
    instruction: str
    answer_tokens: int
    words: tuple[int | None, int | None]

    def accepts(self, text: str, finish_reason: str | None = "stop") -> bool:
        return self.objection(text, finish_reason) is None


def is_list(text: str) -> bool:
    """A line that begins like a point of a list, or two and more numbered points inside a line."""
    return any(_BULLET.match(line) for line in text.splitlines()) or len(_INLINE_NUMBER.findall(text)) > 1


def has_markup(text: str) -> bool:
    """Bold, a heading, or a line that only announces what follows it."""
    return _MARKUP.search(text) is not None


def offers_next_step(text: str) -> bool:
    """The last sentence is a question, or offers to go on."""
    sentences = [piece.strip() for piece in _SENTENCE.findall(text.strip()) if piece.strip()]
    if not sentences:
        return False
    return sentences[-1].rstrip("\"')]").endswith("?") or _OFFER.search(sentences[-1]) is not None


def _one_sentence(text: str, finish_reason: str | None) -> Objection | None:
    """5 to 30 words on one line, no list, finished."""
    stripped = text.strip()
    words, (fewest, most) = len(stripped.split()), _ONE_SENTENCE_WORDS
    if is_list(stripped):
        return Objection.LIST
    if len(stripped.splitlines()) > 1:
        return Objection.SEVERAL_LINES
    if words > most:
        return Objection.TOO_LONG
    if finish_reason != "stop":
        return Objection.CUT_OFF
    return Objection.TOO_SHORT if words < fewest else None


def _no_lists(text: str, finish_reason: str | None) -> Objection | None:
    """Running text: no points, no bold, no headings; 8 words or more, finished. Paragraphs are welcome."""
    stripped = text.strip()
    if is_list(stripped):
        return Objection.LIST
    if has_markup(stripped):
        return Objection.MARKUP
    if finish_reason != "stop":
        return Objection.CUT_OFF
    return Objection.TOO_SHORT if len(stripped.split()) < _FEWEST_WORDS else None


def _next_step(text: str, finish_reason: str | None) -> Objection | None:
    """8 to 60 words, finished, and the last sentence asks the reader or offers to go on."""
    stripped = text.strip()
    words = len(stripped.split())
    if words > _MOST_WORDS_WITH_OFFER:
        return Objection.TOO_LONG
    if finish_reason != "stop":
        return Objection.CUT_OFF
    if words < _FEWEST_WORDS:
        return Objection.TOO_SHORT
    return None if offers_next_step(stripped) else Objection.NO_OFFER


ONE_SENTENCE = Preference(
    name="one_sentence",
    objection=_one_sentence,
    complaints=ONE_SENTENCE_COMPLAINTS,
    instruction="Answer in one short plain sentence.",
    answer_tokens=64,
    words=_ONE_SENTENCE_WORDS,
)
NO_LISTS = Preference(
    name="no_lists",
    objection=_no_lists,
    complaints=NO_LISTS_COMPLAINTS,
    instruction="You answer every question with two short plain sentences.",
    answer_tokens=96,
    words=(_FEWEST_WORDS, None),
)
NEXT_STEP = Preference(
    name="next_step",
    objection=_next_step,
    complaints=NEXT_STEP_COMPLAINTS,
    instruction="Please end with a question.",
    answer_tokens=96,
    words=(_FEWEST_WORDS, _MOST_WORDS_WITH_OFFER),
)
PREFERENCES: Mapping[str, Preference] = {each.name: each for each in (ONE_SENTENCE, NO_LISTS, NEXT_STEP)}
