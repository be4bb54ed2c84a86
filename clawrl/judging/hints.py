"""Hints: what would have made an answer better, said so that a teacher can be told beforehand.

A source proposes candidates, good and bad, in any order; `accept` keeps the few that teach. Short ones first: the
longer a hint, the more of the solution it tends to give away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from clawrl.messages import Judgement, JudgeRequest


class HintSource(Protocol):
    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        """Candidates, as they come. ``judgement`` is the verdict on the same case, its hints not yet filled in."""
        ...


class NoHints:
    """For methods that learn from verdicts alone."""

    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        return ()


def accept(candidates: Sequence[str], *, max_hints: int, min_chars: int) -> tuple[str, ...]:
    """Those longer than ``min_chars`` characters, each text once, shortest first, at most ``max_hints``.

    Texts that differ in white space only are the same; of equally long ones the first comes first.
    """
    once: dict[str, str] = {}
    for candidate in candidates:
        hint = candidate.strip()
        if len(hint) > min_chars:
            once.setdefault(" ".join(hint.split()), hint)
    return tuple(sorted(once.values(), key=len)[:max_hints])
