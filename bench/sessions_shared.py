"""How much of a session's tokens goes through the model once, and where that ends: pure functions of token ids.

In: the turns of a deployment or of recorded requests, in the order in which they came, each with the ids that would be
trained. Out: the counts, by `clawrl.training.packing` and `clawrl.training.tree` themselves, and for each turn whose
ids do not begin with all of those of the turn before it the place where they part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clawrl.training.packing import plan_packs
from clawrl.training.tree import TokenArray, plant


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A turn: ``ids`` are its prompt and its response, ``parent`` the name of the turn that it continues.

    ``step`` is the optimizer step that trained it, if one did.
    """

    name: str
    session: str
    parent: str | None
    ids: TokenArray
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Turn ``name`` begins with the first ``kept`` of the ``of`` ids of ``before``, and then goes another way.

    ``continues`` is false where it does not even say that it goes on from ``before``: a conversation begun anew.
    """

    name: str
    before: str
    kept: int
    of: int
    continues: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """``tokens`` of ``turns`` samples, of which ``computed`` go through the model."""

    turns: int
    tokens: int
    computed: int

    @property
    def factor(self) -> float:
        return self.tokens / self.computed


def measure(turns: Sequence[Seen], micro_batch_tokens: int) -> Shared:
    """All of ``turns`` as one batch of a trainer with one rank."""
    sequences = [turn.ids for turn in turns]
    (packs,) = plan_packs(sequences, micro_batch_tokens)
    return Shared(
        turns=len(turns),
        tokens=sum(map(len, sequences)),
        computed=sum(len(plant([sequences[i] for i in pack]).ids_N) for pack in packs),
    )


def added(parts: Sequence[Shared]) -> Shared:
    return Shared(
        turns=sum(part.turns for part in parts),
        tokens=sum(part.tokens for part in parts),
        computed=sum(part.computed for part in parts),
    )


def by_session(turns: Sequence[Seen]) -> Mapping[str, list[Seen]]:
    """Sessions in the order in which they began."""
    found: dict[str, list[Seen]] = {}
    for turn in turns:
        found.setdefault(turn.session, []).append(turn)
    return found


def batches(turns: Sequence[Seen], size: int) -> list[list[Seen]]:
    """Those that a trainer took, if it took any; otherwise ``size`` turns at a time, in the order they came in."""
    taken: dict[int, list[Seen]] = {}
    for turn in turns:
        if turn.step is not None:
            taken.setdefault(turn.step, []).append(turn)
    return list(taken.values()) or [list(turns[at : at + size]) for at in range(0, len(turns), size)]


def partings(turns: Sequence[Seen]) -> list[Parting]:
    """Of one session. A turn without a parent is compared with the one that came before it."""
    known = {turn.name: turn for turn in turns}
    found = []
    for i, turn in enumerate(turns):
        if i == 0:
            continue
        parent = known.get(turn.parent or "")
        before = parent or turns[i - 1]
        kept = _alike(before.ids, turn.ids)
        if parent is None or kept < len(before.ids):
            found.append(
                Parting(name=turn.name, before=before.name, kept=kept, of=len(before.ids), continues=parent is not None)
            )
    return found


def _alike(a: TokenArray, b: TokenArray) -> int:
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    return int(differing[0]) if len(differing) else n
