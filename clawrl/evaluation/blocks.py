"""First answers in the order in which their sessions began: cut into blocks, averaged, and searched for the moment
from which the preference holds. Pure functions.

Only first answers say what the policy has learned: later ones of a session have its complaints in their prompt.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from clawrl.evaluation.demo_users import Answer

BLOCK = 16
_HOLDS_AFTER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """``answers`` first answers from the ``begins``-th on (from 1). The last block of a run may be a short one."""

    begins: int
    answers: int
    accepted_share: float
    mean_words: float
    truncated_share: float


def block_of(answers: Sequence[Answer], begins: int = 1) -> Block | None:
    """The figures of these answers; None of none."""
    if not answers:
        return None
    return Block(
        begins=begins,
        answers=len(answers),
        accepted_share=fmean(answer.accepted for answer in answers),
        mean_words=fmean(answer.words for answer in answers),
        truncated_share=fmean(answer.finish_reason == "length" for answer in answers),
    )


def blocks(answers: Sequence[Answer], size: int = BLOCK) -> list[Block]:
    cut = [block_of(answers[start : start + size], start + 1) for start in range(0, len(answers), size)]
    return [block for block in cut if block is not None]


def by_version(answers: Sequence[Answer]) -> Mapping[int, list[Answer]]:
    """Answers by the version of their last token; those that did not say one are left out."""
    found: dict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.version is not None:
            found[answer.version].append(answer)
    return dict(sorted(found.items()))


def sessions_until_held(answers: Sequence[Answer], in_a_row: int = _HOLDS_AFTER) -> int | None:
    """How many sessions it took until ``in_a_row`` first answers one after the other were accepted; None: never."""
    streak = 0
    for count, answer in enumerate(answers, 1):
        streak = streak + 1 if answer.accepted else 0
        if streak == in_a_row:
            return count
    return None


def spread_out(answers: Sequence[Answer], at_most: int) -> list[Answer]:
    """``at_most`` of the answers, evenly spaced, in order."""
    if len(answers) <= at_most:
        return list(answers)
    return [answers[number * len(answers) // at_most] for number in range(at_most)]
