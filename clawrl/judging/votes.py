"""From a model's written votes to one verdict. Pure functions.

A vote ends in ``\\boxed{...}`` with +1, 1, 0 or -1. Anything else is no vote, and no vote is never counted as 0:
whoever cannot be understood abstains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from clawrl.judging.text import after_reasoning

_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_NUMBERS = {"+1": 1, "1": 1, "0": 0, "-1": -1}


def boxed(text: str) -> int | None:
    """The number in the last box after the reasoning; None when there is none or it is not a vote.

    A last box that is no vote is not passed over for an earlier one, and boxes of the reasoning never count.
    """
    boxes = _BOX.findall(after_reasoning(text))
    return _NUMBERS.get("".join(boxes[-1].split())) if boxes else None


def majority(votes: Sequence[int | None]) -> int | None:
    """The most frequent valid vote; 0 when several are the most frequent, None when there is no valid vote."""
    counts = Counter(vote for vote in votes if vote is not None).most_common(2)
    if not counts:
        return None
    tied = len(counts) == 2 and counts[0][1] == counts[1][1]
    return 0 if tied else counts[0][0]
