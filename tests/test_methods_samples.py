"""Which judged turns each method learns from, and what the sample says of them."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from clawrl.messages import DropReason, Judgement, Sample, TeacherTargets, Turn, TurnId, Verdict
from clawrl.methods.base import JudgementNeed, Method
from clawrl.methods.registry import build_method, builtin_names, method_class
from tests.ledger_kit import ask, serve, taught, user

TURN = serve(ask("t1", user("a question"), group="g"), user("a question"), "an answer")
TOP_K = {"opd_topk": 3, "combine_topk": 3}
DROPPED = DropReason.JUDGE_ABSTAINED, DropReason.NEUTRAL, DropReason.NO_HINT, DropReason.TEACHER_FAILED
ABSTAINED, NEUTRAL, NO_HINT, TEACHER_FAILED = DROPPED


def method(name: str, **settings: Any) -> Method:
    top_k = {"teacher_top_k": 3, "k": 2} if name in TOP_K else {}
    return build_method(method_class(name).Config(**top_k, **settings))


def judgement(
    verdict: int | None, *, hints: tuple[str, ...] = (), feedback: float | None = None, turn_id: str = "t1"
) -> Judgement:
    return Judgement(
        turn_id=TurnId(turn_id),
        verdict=None if verdict is None else Verdict(verdict),
        score=None,
        votes=(),
        judge="j",
        seconds=0.1,
        hints=hints,
        feedback=feedback,
    )


def teacher(name: str, hints: int = 1) -> TeacherTargets:
    return taught(("be brief", "be much briefer", "say only yes or no")[:hints], TOP_K.get(name, 0))


@pytest.mark.parametrize("name", builtin_names())
@pytest.mark.parametrize(("verdict", "reward"), [(1, 1.0), (-1, -1.0)])
def test_the_tokens_stay_as_sampled_and_the_verdict_is_the_reward(name: str, verdict: int, reward: float) -> None:
    one = method(name)
    sample = one.sample(TURN, judgement(verdict, hints=("be brief",)), teacher(name))
    assert isinstance(sample, Sample)
    assert sample.reward == reward
    assert sample.rl_mask is (JudgementNeed.VERDICT in one.needs)
    assert sample.opd_mask is (JudgementNeed.TEACHER in one.needs)
    assert sample.prompt_ids is TURN.prompt_ids and sample.response_ids is TURN.response_ids
    assert sample.behaviour_logps is TURN.response_logps
    assert sample.mask.all() and one.token_mask(sample).all()
    assert (sample.temperature, sample.spans, sample.group) == (0.7, TURN.spans, f"g/{TURN.arrival.messages_hash}")


def test_only_answers_to_the_same_request_are_in_one_group() -> None:
    def group(turn: Turn) -> str | None:
        made = method("binary_rl").sample(turn, judgement(1, turn_id=turn.turn_id), None)
        assert isinstance(made, Sample)
        return made.group

    def asked(turn_id: str, text: str, name: str | None) -> Turn:
        return serve(ask(turn_id, user(text), group=name), user(text), f"answer {turn_id}")

    same = [group(asked(turn_id, "a question", "g")) for turn_id in ("t2", "t3")]
    assert same[0] == same[1] == group(TURN)
    others = {group(asked("t4", "another question", "g")), group(asked("t5", "a question", "h"))}
    assert len({*others, group(TURN)}) == 3
    assert group(asked("t6", "a question", None)) is None


@pytest.mark.parametrize(
    ("verdict", "hints", "asked", "expected"),
    [
        # verdict, hints, whether the teacher answered: who learns (R reward, T teacher) or why nobody does.
        (1, 1, True, {"binary_rl": "R", "opd": "T", "combine": "RT"}),
        (1, 1, False, {"binary_rl": "R", "opd": TEACHER_FAILED, "combine": "R"}),
        (-1, 0, False, {"binary_rl": "R", "opd": NO_HINT, "combine": "R"}),
        (0, 1, True, {"binary_rl": NEUTRAL, "opd": "T", "combine": "T"}),
        (0, 1, False, {"binary_rl": NEUTRAL, "opd": TEACHER_FAILED, "combine": NEUTRAL}),
        (0, 0, False, {"binary_rl": NEUTRAL, "opd": NO_HINT, "combine": NEUTRAL}),
        (None, 1, True, {"binary_rl": ABSTAINED, "opd": "T", "combine": "T"}),
        (None, 1, False, {"binary_rl": ABSTAINED, "opd": TEACHER_FAILED, "combine": ABSTAINED}),
        (None, 0, False, {"binary_rl": ABSTAINED, "opd": NO_HINT, "combine": ABSTAINED}),
    ],
)
@pytest.mark.parametrize("name", builtin_names())
def test_a_turn_teaches_what_is_known_of_it_or_is_dropped_with_the_reason_that_concerns_the_method(
    name: str, verdict: int | None, hints: int, asked: bool, expected: dict[str, Any]
) -> None:
    made = method(name).sample(TURN, judgement(verdict, hints=("be brief",) * hints), teacher(name) if asked else None)
    if isinstance(made, Sample):
        made_of = "R" * made.rl_mask + "T" * made.opd_mask
        assert (made.teacher is not None) is made.opd_mask
        assert method(name).token_mask(made).all()
        assert made_of == expected[name.removesuffix("_topk")]
    else:
        assert made is expected[name.removesuffix("_topk")]


def test_a_persons_score_is_the_reward_itself_and_outranks_the_judge() -> None:
    made = method("binary_rl").sample(TURN, judgement(-1, feedback=0.5), None)
    assert isinstance(made, Sample) and made.reward == 0.5
    assert method("binary_rl").sample(TURN, judgement(1, feedback=0.0), None) is NEUTRAL


@pytest.mark.parametrize("name", builtin_names())
def test_a_judgement_of_another_turn_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="judgement of turn t2 was paired with turn t1"):
        method(name).sample(TURN, judgement(1, turn_id="t2"), teacher(name))


def test_a_reward_that_is_not_finite_never_becomes_a_sample() -> None:
    good = method("binary_rl").sample(TURN, judgement(1), None)
    assert isinstance(good, Sample)
    with pytest.raises(ValueError, match="not finite"):
        dataclasses.replace(good, reward=math.nan)


@pytest.mark.parametrize("name", builtin_names())
def test_a_sample_with_neither_reward_nor_teacher_trains_no_token(name: str) -> None:
    one = method(name)
    sample = one.sample(TURN, judgement(1, hints=("be brief",)), teacher(name))
    assert isinstance(sample, Sample)
    assert not one.token_mask(dataclasses.replace(sample, rl_mask=False, teacher=None)).any()


@pytest.mark.parametrize("name", TOP_K)
@pytest.mark.parametrize("top_k", [0, 2, 5])
def test_a_teacher_that_listed_another_number_of_tokens_counts_as_failed(name: str, top_k: int) -> None:
    def made(verdict: int) -> Sample | DropReason:
        return method(name).sample(TURN, judgement(verdict, hints=("be brief",)), taught(top_k=top_k))

    assert made(0) is (TEACHER_FAILED if name == "opd_topk" else DropReason.NEUTRAL)
    rewarded = made(-1)
    if name == "opd_topk":
        assert rewarded is TEACHER_FAILED
    else:
        assert isinstance(rewarded, Sample) and rewarded.teacher is None
        assert rewarded.rl_mask and rewarded.reward == -1.0


@pytest.mark.parametrize("name", ["opd", "combine"])
def test_the_shortest_hint_teaches_and_a_missing_teacher_is_marked_rather_than_guessed(name: str) -> None:
    one = method(name)
    sample = one.sample(TURN, judgement(1), teacher(name, hints=3))
    assert isinstance(sample, Sample) and sample.teacher is not None
    columns = one.columns(sample)
    assert columns["teacher_logp"].tolist() == sample.teacher.logps[0].tolist()
    assert columns["opd_mask"].tolist() == [True] * 3
    without = one.columns(dataclasses.replace(sample, teacher=None))
    assert without["opd_mask"].tolist() == [False] * 3
    assert {key: value.dtype for key, value in without.items()} == {key: v.dtype for key, v in columns.items()}


@pytest.mark.parametrize("name", TOP_K)
def test_top_k_columns_hold_every_hint_with_tokens_first(name: str) -> None:
    one = method(name)
    sample = one.sample(TURN, judgement(1), teacher(name, hints=2))
    assert isinstance(sample, Sample) and sample.teacher is not None
    columns = one.columns(sample)
    for h, t in np.ndindex(2, 3):
        assert columns["teacher_ids"][t, h].tolist() == sample.teacher.topk_ids[h, t].tolist()
        assert columns["teacher_logp"][t, h].tolist() == sample.teacher.topk_logps[h, t].tolist()
    assert columns["hint_mask"].shape == (3, 2) and columns["hint_mask"].all()
    without = one.columns(dataclasses.replace(sample, teacher=None))
    assert not without["hint_mask"].any()
    assert {key: value.dtype for key, value in without.items()} == {key: v.dtype for key, v in columns.items()}


def test_each_method_says_what_it_asks_of_judge_and_teacher() -> None:
    asks = {
        name: ("+".join(sorted(one.needs)), one.teacher_top_k, one.teacher_hints)
        for name, one in ((name, method(name)) for name in builtin_names())
    }
    assert asks == {
        "binary_rl": ("verdict", 0, 1),
        "opd": ("hints+teacher", 0, 1),
        "combine": ("hints+teacher+verdict", 0, 1),
        "opd_topk": ("hints+teacher", 3, None),
        "combine_topk": ("hints+teacher+verdict", 3, None),
    }
    assert {method(name, hint_selection="shortest").teacher_hints for name in TOP_K} == {1}
    assert {method(name, hint_selection="token_optimal").teacher_hints for name in TOP_K} == {None}


@pytest.mark.parametrize("name", builtin_names())
def test_a_reference_model_is_needed_only_for_kl(name: str) -> None:
    assert method(name, kl_coef=0.1).needs_reference and not method(name, kl_coef=0.0).needs_reference
