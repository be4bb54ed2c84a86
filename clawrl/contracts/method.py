"""What a learning method promises apart from its loss: see `clawrl.methods.base.Method`, whose text this checks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clawrl.contracts import examples
from clawrl.contracts.report import require, same
from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn
from clawrl.methods.base import JudgementNeed, Method, MethodState

_CLOSE = 1e-9
_COLUMN_TYPES = ("float32", "int64", "bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What `Method.advantages` is asked about."""

    what: str
    rewards: tuple[float, ...]
    rewarded: tuple[bool, ...]
    groups: tuple[str | None, ...]


def batches() -> list[Batch]:
    ragged = tuple("aaaabbbcccc")
    return [
        _batch("mixed rewards", [1.0, -1.0, 1.0, 0.3, -0.5, 1.0]),
        _batch("some without a reward", [1.0, 0.0, -1.0, 0.0], [True, False, True, False]),
        _batch("groups of 4, 3 and 4", [1, -1, 1, 1, -1, -1, 1, 1, 1, 1, 1], groups=ragged),
        _batch("a group with one member that counts", [1, -1, 1], [True, False, True], ("a", "a", None)),
        _batch("one sample", [1.0]),
        _batch("one sample in a group", [-1.0], groups=("a",)),
        _batch("equal rewards", [1.0] * 5, groups=("a", "a", "a", None, None)),
        _batch("nobody rewarded", [0.0] * 3, [False] * 3, ("a", "a", None)),
        _batch("no samples", []),
    ]


def it_declares_what_it_needs(method: Any) -> None:
    require(isinstance(method.name, str) and bool(method.name), f"name is {method.name!r}; make it a text")
    needs = method.needs
    fine = isinstance(needs, frozenset) and all(isinstance(need, JudgementNeed) for need in needs)
    require(fine, f"needs is {needs!r}; make it a frozenset of JudgementNeed")
    top_k = method.teacher_top_k
    require(
        isinstance(top_k, int) and top_k >= 0, f"teacher_top_k is {top_k!r}; make it a number of tokens, 0 for none"
    )
    hints = method.teacher_hints
    require(hints is None or (isinstance(hints, int) and hints > 0), f"teacher_hints is {hints!r}; a number, or None")
    require(isinstance(method.needs_reference, bool), f"needs_reference is {method.needs_reference!r}, not a bool")
    if top_k:
        require(JudgementNeed.TEACHER in needs, "teacher_top_k is set, but needs does not ask for a teacher")
    if JudgementNeed.TEACHER in needs:
        require(JudgementNeed.HINTS in needs, "a teacher is told hints: needs must ask for hints as well")


def its_state_survives_json(method: Method) -> None:
    _check_state(method.initial_state(), "initial_state()")
    for batch in batches():
        _check_state(_advantages(method, batch)[1], f"the state after {batch.what}")


def every_judged_turn_becomes_a_sample_or_has_a_reason(method: Method) -> None:
    for question in _questions(method):
        _made(method, question)


def a_sample_is_its_turn_token_by_token(method: Method) -> None:
    for turn, judgement, teacher in _questions(method):
        made = _made(method, (turn, judgement, teacher))
        if isinstance(made, DropReason):
            continue
        pairs = {
            "turn_id": (made.turn_id, turn.turn_id),
            "prompt_ids": (made.prompt_ids, turn.prompt_ids),
            "response_ids": (made.response_ids, turn.response_ids),
            "behaviour_logps": (made.behaviour_logps, turn.response_logps),
            "spans": (made.spans, turn.spans),
            "temperature": (made.temperature, turn.sampling.temperature),
        }
        wrong = [name for name, (given, expected) in pairs.items() if not same(given, expected)]
        require(not wrong, f"the sample of turn {turn.turn_id} has another {', '.join(wrong)} than its turn")
        # A reward is the judge's or nobody's: an abstention never becomes one.
        unearned = judgement.reward is None and made.rl_mask
        require(not unearned, f"the sample of turn {turn.turn_id} counts a reward that nobody gave")


def some_judged_turn_becomes_a_sample(method: Method) -> None:
    made = [_made(method, question) for question in _questions(method)]
    reasons = sorted({reason.value for reason in made if isinstance(reason, DropReason)})
    require(any(isinstance(one, Sample) for one in made), f"every example is dropped: {', '.join(reasons)}")


def the_token_mask_is_one_flag_per_token(method: Method) -> None:
    for sample in _samples(method):
        mask = method.token_mask(sample)
        shape = sample.response_ids.shape
        flags = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
        require(flags, f"token_mask is {mask!r:.60}; make it an array of bool")
        require(mask.shape == shape, f"token_mask has shape {mask.shape} for a response of shape {shape}")
        require(not (mask & ~sample.mask).any(), f"token_mask trains tokens that sample {sample.turn_id} masks out")


def columns_look_alike_for_every_sample(method: Method) -> None:
    """Names, types and number of axes; axes after the tokens may differ in length and are padded with zeros."""
    first: dict[str, tuple[str, int]] | None = None
    for sample in _samples(method):
        columns = method.columns(sample)
        for name, column in columns.items():
            given = isinstance(column, np.ndarray) and str(column.dtype) in _COLUMN_TYPES
            require(given, f"column {name} is {column!r:.60}; make it an array of {', '.join(_COLUMN_TYPES)}")
            tokens = len(sample.response_ids)
            fits = column.ndim > 0 and len(column) == tokens
            require(fits, f"column {name} has shape {column.shape} for {tokens} tokens")
            require(bool(np.isfinite(column).all()), f"column {name} of sample {sample.turn_id} is not finite")
        looks = {name: (str(column.dtype), column.ndim) for name, column in columns.items()}
        first = first or looks
        require(looks == first, f"columns are {first} for one sample and {looks} for {sample.turn_id}")


def advantages_are_finite_and_one_per_sample(method: Method) -> None:
    for batch in batches():
        found, _ = _advantages(method, batch)
        require(isinstance(found, np.ndarray), f"advantages are {found!r:.60}; make them an array")
        size = (len(batch.rewards),)
        require(found.shape == size, f"{batch.what}: advantages have shape {found.shape}, not {size}")
        require(bool(np.isfinite(found).all()), f"{batch.what}: advantages are {found}")


def a_sample_without_a_reward_has_no_advantage(method: Method) -> None:
    for batch in batches():
        found, _ = _advantages(method, batch)
        silent = found[~np.array(batch.rewarded, dtype=np.bool_)]
        require(not silent.any(), f"{batch.what}: a sample whose reward does not count has the advantage {silent}")


def advantages_do_not_depend_on_the_order(method: Method) -> None:
    """Groups are found by their id: neighbours in a batch have nothing to do with each other."""
    for batch in batches():
        found, state = _advantages(method, batch)
        for order in _orders(len(batch.rewards)):
            moved = Batch(
                what=batch.what,
                rewards=tuple(batch.rewards[i] for i in order),
                rewarded=tuple(batch.rewarded[i] for i in order),
                groups=tuple(batch.groups[i] for i in order),
            )
            again, again_state = _advantages(method, moved)
            apart = np.abs(again - found[order]).max(initial=0.0)
            require(apart < _CLOSE, f"{batch.what}: in another order the advantages are {again}, not {found[order]}")
            close = all(abs(again_state[key] - state[key]) < _CLOSE for key in state)
            require(close, f"{batch.what}: in another order the state is {dict(again_state)}, not {dict(state)}")


def the_same_question_gets_the_same_answer_and_nothing_is_written(method: Method) -> None:
    for given, fresh in zip(_questions(method), _questions(method), strict=True):
        first, second = method.sample(*given), method.sample(*given)
        require(same(first, second), f"sample() gave two answers for turn {given[0].turn_id}")
        require(same(given, fresh), f"sample() wrote into its arguments for turn {given[0].turn_id}")
    for sample, fresh_sample in zip(_samples(method), _samples(method), strict=True):
        for function in (method.token_mask, method.columns):
            alike = same(function(sample), function(sample))
            require(alike, f"{function.__name__}() gave two answers for {sample.turn_id}")
        require(same(sample, fresh_sample), f"token_mask() or columns() wrote into sample {sample.turn_id}")
    for batch in batches():
        arrays, rewarded = np.array(batch.rewards, dtype=np.float64), np.array(batch.rewarded, dtype=np.bool_)
        state = dict(method.initial_state())
        answers = [method.advantages(arrays, rewarded, batch.groups, state) for _ in range(2)]
        require(same(answers[0][0], answers[1][0]), f"{batch.what}: advantages() gave two answers")
        written = state != method.initial_state() or list(arrays) != list(batch.rewards)
        written = written or list(rewarded) != list(batch.rewarded)
        require(not written, f"{batch.what}: advantages() wrote into its arguments")


METHOD_CHECKS = (
    it_declares_what_it_needs,
    its_state_survives_json,
    every_judged_turn_becomes_a_sample_or_has_a_reason,
    some_judged_turn_becomes_a_sample,
    a_sample_is_its_turn_token_by_token,
    the_token_mask_is_one_flag_per_token,
    columns_look_alike_for_every_sample,
    advantages_are_finite_and_one_per_sample,
    a_sample_without_a_reward_has_no_advantage,
    advantages_do_not_depend_on_the_order,
    the_same_question_gets_the_same_answer_and_nothing_is_written,
)

_Question = tuple[Turn, Judgement, TeacherTargets | None]


def _batch(
    what: str,
    rewards: list[float],
    rewarded: list[bool] | None = None,
    groups: tuple[str | None, ...] | None = None,
) -> Batch:
    size = len(rewards)
    return Batch(
        what=what,
        rewards=tuple(map(float, rewards)),
        rewarded=tuple([True] * size if rewarded is None else rewarded),
        groups=(None,) * size if groups is None else groups,
    )


def _questions(method: Method) -> Iterator[_Question]:
    for turn in examples.turns():
        for judgement in examples.judgements(turn):
            yield turn, judgement, None
            hints = judgement.hints[: method.teacher_hints]
            if hints:
                yield turn, judgement, examples.teacher(turn.turn_id, turn.response_ids, method.teacher_top_k, hints)


def _made(method: Method, question: _Question) -> Sample | DropReason:
    made = method.sample(*question)
    kind = type(made).__name__
    require(isinstance(made, Sample | DropReason), f"sample() returned a {kind}; return a Sample or a DropReason")
    return made


def _samples(method: Method) -> list[Sample]:
    return examples.samples(method.teacher_top_k, method.teacher_hints)


def _advantages(method: Method, batch: Batch) -> tuple[Any, MethodState]:
    rewards = np.array(batch.rewards, dtype=np.float64)
    rewarded = np.array(batch.rewarded, dtype=np.bool_)
    return method.advantages(rewards, rewarded, batch.groups, dict(method.initial_state()))


def _check_state(state: Any, what: str) -> None:
    require(isinstance(state, Mapping), f"{what} is {state!r:.60}; make it a mapping of names to numbers")
    numbers = all(isinstance(key, str) and isinstance(value, int | float) for key, value in state.items())
    require(numbers, f"{what} is {dict(state)}; only names and plain numbers can be checkpointed")
    require(all(map(math.isfinite, state.values())), f"{what} is {dict(state)}")
    again = json.loads(json.dumps(dict(state)))
    require(again == dict(state), f"{what} is {dict(state)} and comes back as {again}")


def _orders(size: int) -> list[list[int]]:
    shuffled = np.random.default_rng(size).permutation(size)
    return [list(range(size))[::-1], [int(i) for i in shuffled]]
