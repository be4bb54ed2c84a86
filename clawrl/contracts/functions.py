"""What rewards, hint sources and filters promise. The border where they are called in earnest checks the same forms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clawrl.contracts import examples
from clawrl.contracts.report import require, same
from clawrl.guards.filters import TurnFilter
from clawrl.judging.rewards import RewardFunction, own_hint_source
from clawrl.messages import Judgement, Message, Turn


def it_judges_every_turn_with_and_without_evidence(reward: RewardFunction) -> None:
    for judgement in _judged(reward):
        require(bool(judgement.judge), "judge is empty; name what judged")


def it_has_an_opinion_sometimes(reward: RewardFunction) -> None:
    require(
        any(judgement.reward for judgement in _judged(reward)),
        "every example is neutral or abstained from: nothing would be learned",
    )


def the_same_turn_gets_the_same_reward_and_stays_as_it_was(reward: RewardFunction) -> None:
    asked, fresh = _rewarded(), _rewarded()
    for first, second in zip(_judged(reward, asked), _judged(reward, asked), strict=True):
        require(
            first.reward == second.reward, f"turn {first.turn_id} was rewarded {first.reward}, then {second.reward}"
        )
    for (turn, evidence), untouched in zip(asked, fresh, strict=True):
        require(same((turn, evidence), untouched), f"the function wrote into turn {turn.turn_id}")


REWARD_CHECKS = (
    it_judges_every_turn_with_and_without_evidence,
    it_has_an_opinion_sometimes,
    the_same_turn_gets_the_same_reward_and_stays_as_it_was,
)


def it_answers_every_case_with_texts(found: Any) -> None:
    """A class is made without arguments and has ``async hints``; a function is called."""
    source = own_hint_source(found, "the function")

    async def ask() -> list[Any]:
        cases = [case for turn in examples.turns() for case in examples.cases(turn)]
        return [await source.hints(case, judgement) for case, judgement in cases]

    for hints in asyncio.run(ask()):
        fine = isinstance(hints, tuple | list) and all(isinstance(hint, str) for hint in hints)
        require(fine, f"hints() returned {hints!r:.60}; return a tuple of texts, () for none")


HINT_CHECKS = (it_answers_every_case_with_texts,)


def it_gives_a_reason_or_none(one: TurnFilter) -> None:
    for turn in examples.turns():
        reason = one(turn)
        require(
            reason is None or (isinstance(reason, str) and bool(reason.strip())),
            f"turn {turn.turn_id} got {reason!r:.60}; return the reason to refuse it, or None to let it pass",
        )


def it_lets_something_pass(one: TurnFilter) -> None:
    reasons = [one(turn) for turn in examples.turns()]
    require(None in reasons, f"every example is refused, the last with {reasons[-1]!r:.60}: nothing would be learned")


def the_same_turn_gets_the_same_answer_and_stays_as_it_was(one: TurnFilter) -> None:
    for turn, fresh in zip(examples.turns(), examples.turns(), strict=True):
        first, second = one(turn), one(turn)
        require(first == second, f"turn {turn.turn_id} got {first!r:.60}, then {second!r:.60}")
        require(same(turn, fresh), f"the filter wrote into turn {turn.turn_id}")


FILTER_CHECKS = (
    it_gives_a_reason_or_none,
    it_lets_something_pass,
    the_same_turn_gets_the_same_answer_and_stays_as_it_was,
)


_Rewarded = tuple[Turn, tuple[Message, ...]]


def _rewarded() -> list[_Rewarded]:
    return [(turn, evidence) for turn in examples.turns() for evidence in examples.EVIDENCE]


def _judged(reward: RewardFunction, asked: Sequence[_Rewarded] | None = None) -> list[Judgement]:
    """In one event loop: a client that a user's code opens belongs to the loop that it was opened in."""

    async def ask() -> list[Judgement]:
        return [await reward.judge(turn, evidence) for turn, evidence in asked or _rewarded()]

    return asyncio.run(ask())
