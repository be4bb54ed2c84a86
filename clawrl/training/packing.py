"""Which samples go through the model together, and on which rank.

A *pack* is one forward and backward pass over a forest of at most ``budget`` tokens (a longer sample has one to itself;
nothing is ever cut). Samples that share a beginning are kept together. With several data-parallel ranks every rank gets
equally many packs, since each pass is a collective, and passes taken at the same time cost about the same; a rank for
which there is nothing left gets an empty pack.

Pure functions of the token sequences: every rank makes the same plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from clawrl.training.tree import Forest, TokenArray, in_order, plant, shared_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Sequences that share beginnings, the tokens of their trees and what a pass over these costs."""

    members: tuple[int, ...]
    tokens: int
    cost: float


def plan_packs(
    sequences: Sequence[TokenArray], budget: int, *, ranks: int = 1, share: bool = True, pair_cost: float = 0.0
) -> list[list[tuple[int, ...]]]:
    """``plan[rank][pass]`` are the indices of the samples in that pack; empty where the rank only takes part.

    ``pair_cost`` is what one token's attention to one other costs, where a token by itself costs 1.
    """
    families = _families(sequences, budget, ranks, share, pair_cost)
    packs = min(len(families), -(-sum(family.tokens for family in families) // budget))
    while True:
        packs = max(1, -(-packs // ranks)) * ranks
        if (filled := _fill(families, packs, budget)) is not None:
            break
        packs += 1
    # Costly ones first and side by side: ranks wait for each other in every pass.
    filled.sort(key=lambda pack: -sum(family.cost for family in pack))
    indices = [tuple(i for family in pack for i in family.members) for pack in filled]
    return [indices[rank::ranks] for rank in range(ranks)]


def forest_cost(forest: Forest, pair_cost: float) -> float:
    """Every token, and every pair of tokens of which one attends to the other."""
    pairs = sum(node.length * (node.depth + (node.length + 1) / 2) for node in forest.nodes)
    return len(forest.ids_N) + pair_cost * pairs


def _families(sequences: Sequence[TokenArray], budget: int, ranks: int, share: bool, pair_cost: float) -> list[_Family]:
    order = in_order(sequences)
    shared = [shared_prefix(sequences[a], sequences[b]) if share else 0 for a, b in pairwise(order)]
    fresh = [len(sequences[i]) - known for i, known in zip(order, [0, *shared], strict=True)]
    # One large family would leave other ranks idle: it is rather taken apart, and its beginning done more than once.
    part = -(-sum(fresh) // ranks)
    families: list[_Family] = []
    own = 0
    for i, known, new in zip(order, [0, *shared], fresh, strict=True):
        if known and own + new <= part:
            # Planted, since a branch that would be too short is not shared after all.
            grown = _family(sequences, (*families[-1].members, i), share, pair_cost)
            if grown.tokens <= budget:
                families[-1], own = grown, own + new
                continue
        families.append(_family(sequences, (i,), share, pair_cost))
        own = new
    return families


def _family(sequences: Sequence[TokenArray], members: tuple[int, ...], share: bool, pair_cost: float) -> _Family:
    forest = plant([sequences[i] for i in members], share=share)
    return _Family(members=members, tokens=len(forest.ids_N), cost=forest_cost(forest, pair_cost))


def _fill(families: Sequence[_Family], packs: int, budget: int) -> list[list[_Family]] | None:
    """Costliest first, each into the cheapest pack that has room; ``None`` where one finds none."""
    filled: list[list[_Family]] = [[] for _ in range(packs)]
    tokens, costs = [0] * packs, [0.0] * packs
    for family in sorted(families, key=lambda family: (-family.cost, family.members)):
        # An empty pack has room for anything.
        open_packs = [p for p in range(packs) if not filled[p] or tokens[p] + family.tokens <= budget]
        if not open_packs:
            return None
        pack = min(open_packs, key=lambda p: (costs[p], p))
        filled[pack].append(family)
        tokens[pack] += family.tokens
        costs[pack] += family.cost
    return filled
