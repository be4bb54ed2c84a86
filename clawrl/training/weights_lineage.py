"""What a trainer's weights were made of, in one line: a hash over the steps behind them and the turns in each.

It goes into every checkpoint, so that weights and ledger can be compared to the sample: whoever follows the ledger's
steps in order comes to the same line, unless a turn is in the weights twice, or not, or in another step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

UNTRAINED = ""


def follow(lineage: str, step: int, turn_ids: Iterable[str]) -> str:
    """The lineage after ``step`` learned from these turns, in whatever order."""
    told = " ".join([lineage, str(step), *sorted(turn_ids)])
    return hashlib.sha256(told.encode()).hexdigest()
