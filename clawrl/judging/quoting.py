"""The user's own correction as the hint, for judge models too small to write one.

From every message of the user after an answer that was not good, the sentences are quoted that say how the answer
should have been. Displeasure, thanks, a bare "try again" and new questions tell a teacher nothing and are left out.
A wish for something teaches better than one against something, so the second kind is quoted only without the first.
The patterns are English; what they do not recognise gives no hint.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from clawrl.messages import Judgement, JudgeRequest, Verdict

# Longer sentences are pasted material, not wishes.
_MAX_CHARS = 240
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+|\n+")
_CLAUSE_END = re.compile(r"(?<=[:;])\s+|\s+[\u2013\u2014-]\s+")

# What answers are made of; a sentence that names it speaks of the answer rather than of the world.
_FORM = (
    r"(?:sentences?|lines?|lists?|bullets?|points?|paragraphs?|words?|answers?|repl(?:y|ies)|responses?|format\w*|"
    r"headings?|markdown|emojis?|tone|style|tables?|numbers?|units?|short(?:er|ly)?|long(?:er)?|brief(?:er|ly)?|"
    r"simple[r]?|simply|plain(?:ly)?|formal|casual|polite|details?|examples?|next steps?|less|more)"
)
# From here on a message is about something else.
_MOVES_ON = re.compile(
    r"\b(?:next question|another (?:one|question)|(?:and )?now (?:this|tell|to)|never ?mind|forget (?:it|about)|"
    r"give up|(?:let's|let us) (?:leave|drop|move|stop)|moving on|no more questions|that is all|that's all|"
    r"i have to go|bye|goodbye|see you)\b",
    re.IGNORECASE,
)
_NEW_TASK = re.compile(
    r"^(?:(?:please|and|so|ok|okay|now|then|just)[ ,]+)*(?:(?:i (?:want|need|would like|'d like) to (?:know|learn|hear|"
    r"understand|ask))|(?:tell|describe|explain|give|show|write|name|list|make|find)\b.*\b(?:about|on|of|for)\b)",
    re.IGNORECASE,
)
_ABOUT_FORM = re.compile(rf"\b{_FORM}\b", re.IGNORECASE)
_START = r"^(?:(?:no|please|and|but|so|just|again|ok|okay|next time|instead|always)[ ,]+)*"
# A demand without content, at the end of a sentence.
_AGAIN = re.compile(
    r"(?:^|[ ,;]+)(?:(?:please|and|just)[ ,]+)*"
    r"(?:(?:(?:try|do|say|answer|write)(?: (?:it|this|that))?(?: over)? )?again|redo (?:it|this|that))"
    r"(?:[ ,]+please)?[.! ]*$",
    re.IGNORECASE,
)
_POLITE_REQUEST = re.compile(
    rf"^(?:(?:no|but|and|please)[ ,]+)*(?:can|could|would|will) you (?:please )?\w+.*(?:\b{_FORM}\b|\binstead\b)",
    re.IGNORECASE,
)
_VERBS = (
    r"(?:make|say|put|answer|write|use|keep|give|end|start|begin|finish|add|include|mention|leave|cut|shorten|be|try|"
    r"reply|respond|address|round|rewrite|rephrase|stick|limit|remember|speak|call|format|sort|summari[sz]e|ask|offer|"
    r"close|drop|skip|explain|show)"
)
_WISH = re.compile(
    rf"{_START}{_VERBS}\b"
    r"|\bplease\b"
    r"|(?<!what )(?<!than )(?<!as )\bI (?:rather |really |only |just )?"
    r"(?:want|wanted|need|needed|prefer|preferred|asked for|would (?:like|prefer))\b\s+\w"
    r"|\bI'd (?:rather|like|prefer)\b\s+\w"
    r"|\b(?:just |only )?(?:one|a single|two|three)\b(?:[\w, ]*)\b(?:sentences?|lines?|words?|paragraphs?)\b"
    r"|\bshould\b|\binstead\b|\bnext time\b"
    r"|^(?:again, |just |but |only )*(?:much |a bit |a little )?(?:shorter|longer|briefer|simpler|more \w+|less \w+)\b",
    re.IGNORECASE,
)
_AGAINST = re.compile(
    rf"{_START}(?:do not|don't|never|stop|avoid)\b"
    rf"|{_START}(?:no|not|without)\s+(?:(?:a|an|any|the|so many|so much|such|more)\s+)?(?:\w+\s+)?{_FORM}\b"
    rf"|{_START}(?:drop|skip|leave out|leave away)\b"
    r"|\bI (?:really )?(?:do not|don't|did not|didn't|never) (?:want|wanted|like|need|ask for|asked for)\b"
    r"\s+(?!this\b|that\b|it\b)\w"
    r"|\bI (?:want|wanted|asked for) no\b"
    r"|\bshould(?: not|n't)\b",
    re.IGNORECASE,
)


class _Kind(enum.Enum):
    WISH = enum.auto()
    AGAINST = enum.auto()
    NOTHING = enum.auto()


class QuotingHints:
    """No model is asked. Tool results are never quoted."""

    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        if judgement.verdict is Verdict.GOOD:
            return ()
        quotes = (quote(message.content) for message in case.evidence if message.role == "user")
        return tuple(found for found in quotes if found)


def quote(text: str) -> str:
    """The sentences of one message that say how the answer should have been, in their order; often none."""
    sentences = [_clause(sentence) for sentence in _own_sentences(text)]
    for kind in (_Kind.WISH, _Kind.AGAINST):
        chosen = [sentence for sentence in sentences if _kind(sentence) is kind]
        if chosen:
            return " ".join(chosen)
    return ""


def _own_sentences(text: str) -> Sequence[str]:
    """The sentences up to the one that turns to something else."""
    sentences = []
    for sentence in _SENTENCE_END.split(text.strip().replace("\u2019", "'")):
        if _MOVES_ON.search(sentence):
            break
        if sentence and len(sentence) <= _MAX_CHARS:
            sentences.append(sentence)
    return sentences


def _clause(sentence: str) -> str:
    """Without leading clauses that only complain: "That is no good: use metres." wishes for metres."""
    parts = _CLAUSE_END.split(sentence, maxsplit=1)
    if len(parts) == 2 and _kind(parts[0]) is _Kind.NOTHING and _kind(parts[1]) is not _Kind.NOTHING:
        return parts[1]
    return sentence


def _kind(sentence: str) -> _Kind:
    sentence = sentence.strip()
    polite = _POLITE_REQUEST.search(sentence) is not None
    if sentence.endswith("?") and not polite:
        return _Kind.NOTHING
    sentence = _AGAIN.sub("", sentence)
    if _NEW_TASK.search(sentence) and not _ABOUT_FORM.search(sentence):
        return _Kind.NOTHING
    if _AGAINST.search(sentence):
        return _Kind.AGAINST
    return _Kind.WISH if polite or _WISH.search(sentence) else _Kind.NOTHING
