"""Whether a request goes on from the turn before it, as the ledger and the prompts will see it."""

from __future__ import annotations

import itertools

from clawrl.messages import Turn


def continues(later: Turn, earlier: Turn) -> bool:
    """True if the later request names the earlier answer by its hashes and has the same system prompt and tools."""
    asked = later.arrival
    named = (asked.prefix_hash, asked.answer_hash) == (earlier.reply_hash, earlier.answer_hash)
    return named and asked.segment == earlier.arrival.segment


def in_a_row(turns: list[Turn]) -> bool:
    """True if each turn continues the one before it, and the first continues none."""
    follow = (continues(later, earlier) for earlier, later in itertools.pairwise(turns))
    return turns[0].arrival.prefix_hash is None and all(follow)


def same_ids(later: Turn, earlier: Turn) -> bool:
    """True if the later prompt begins with the ids of the earlier turn, as they were sampled."""
    return later.reused_ids == len(earlier.prompt_ids) + len(earlier.response_ids)
