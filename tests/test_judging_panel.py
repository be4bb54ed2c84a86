"""A panel settles the verdict first and never loses it to a source of hints; functions of one's own are checked."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from clawrl.judging.choose import engine_must_generate, hint_source
from clawrl.judging.config import HintsConfig, JudgingConfig, TeacherConfig
from clawrl.judging.hints import NoHints
from clawrl.judging.panel import JudgePanel
from clawrl.judging.quoting import QuotingHints
from clawrl.judging.rewards import HintFunction, RewardError, RewardFunction, reward_function
from clawrl.messages import Feedback, Judgement, JudgeRequest, Message, TurnId, Verdict

EVIDENCE = (Message(role="user", content="Use one sentence, please."),)
CASE = JudgeRequest(turn_id=TurnId("t"), request=(), response="a list", evidence=EVIDENCE)
OPINION = Judgement(
    turn_id=TurnId("t"), verdict=Verdict.BAD, score=-2.0, votes=(-1,), judge="fake", seconds=0.0, detail="because"
)


class FakeJudge:
    def __init__(self) -> None:
        self.asked: list[JudgeRequest] = []

    async def judge(self, request: JudgeRequest) -> Judgement:
        self.asked.append(request)
        return OPINION


class FakeHints:
    def __init__(self, *hints: str, error: Exception | None = None, hangs: bool = False) -> None:
        self._hints, self._error, self._hangs = hints, error, hangs
        self.seen: list[Judgement] = []

    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        self.seen.append(judgement)
        if self._error:
            raise self._error
        if self._hangs:
            await asyncio.sleep(3600)
        return self._hints


def _panel(case: JudgeRequest, source: FakeHints, **settings: object) -> tuple[Judgement, FakeJudge]:
    judge = FakeJudge()
    panel = JudgePanel(judge, source, HintsConfig(**settings))  # type: ignore[arg-type]
    return asyncio.run(panel.judge(case)), judge


def test_the_verdict_comes_first_and_the_best_hints_are_added() -> None:
    source = FakeHints("Use one plain sentence.", "Too short.", "Use one  plain sentence.", "Be brief here.")
    judgement, _ = _panel(CASE, source)
    assert source.seen == [OPINION]
    assert judgement.hints == ("Be brief here.", "Use one plain sentence.")
    assert replace(judgement, hints=(), seconds=0.0) == OPINION and judgement.seconds > 0
    assert _panel(CASE, source, max_hints=1)[0].hints == ("Be brief here.",)


@pytest.mark.parametrize(("score", "verdict"), [(-0.4, Verdict.BAD), (0.0, Verdict.NEUTRAL), (1.0, Verdict.GOOD)])
def test_what_a_person_said_on_purpose_settles_the_verdict_without_a_model(score: float, verdict: Verdict) -> None:
    feedback = Feedback(turn_id=TurnId("t"), score=score, comment="", given_at=0.0)
    judgement, judge = _panel(replace(CASE, feedback=feedback), FakeHints("Use one plain sentence."))
    assert not judge.asked
    assert judgement.verdict is verdict and judgement.feedback == score == judgement.reward
    assert judgement.judge == "feedback" and judgement.votes == () and judgement.hints == ("Use one plain sentence.",)


def test_a_source_that_fails_or_hangs_loses_its_hints_and_not_the_verdict() -> None:
    for source, reason in ((FakeHints(error=ValueError("no idea")), "no idea"), (FakeHints(hangs=True), "Timeout")):
        judgement, _ = _panel(CASE, source, timeout_s=0.05)
        assert judgement.verdict is Verdict.BAD and judgement.hints == ()
        assert judgement.detail.startswith("because (no hints: ") and reason in judgement.detail


def test_without_evidence_nobody_is_asked_for_hints() -> None:
    source = FakeHints("Use one plain sentence.")
    assert _panel(replace(CASE, evidence=()), source)[0].hints == () and not source.seen


TURN = SimpleNamespace(turn_id=TurnId("t"))


def _reward(function):  # type: ignore[no-untyped-def]
    return asyncio.run(RewardFunction(function, "mine:reward").judge(TURN, EVIDENCE))  # type: ignore[arg-type]


def test_a_reward_function_may_be_plain_or_async_and_a_plain_one_runs_on_a_thread() -> None:
    threads = []

    def plain(turn: object, evidence: tuple[Message, ...]) -> Judgement:
        assert turn is TURN and evidence == EVIDENCE
        threads.append(threading.current_thread())
        return OPINION

    async def waiting(turn: object, evidence: tuple[Message, ...], verdict: Verdict) -> Judgement:
        return replace(OPINION, verdict=verdict)

    assert _reward(plain) == replace(OPINION, seconds=0.0) and threads[0] is not threading.main_thread()
    assert _reward(functools.partial(waiting, verdict=Verdict.GOOD)).verdict is Verdict.GOOD
    assert _reward(lambda turn, evidence: waiting(turn, evidence, Verdict.BAD)).verdict is Verdict.BAD


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (1.0, r"mine:reward returned 1.0; return a clawrl.messages.Judgement"),
        (None, "returned None"),
        (replace(OPINION, turn_id=TurnId("other")), "judged turn 'other' when asked about 't'"),
        (replace(OPINION, verdict=1), "use Verdict.GOOD"),  # type: ignore[arg-type]
        (replace(OPINION, feedback=2.0), "in -1..1"),
        (replace(OPINION, feedback=float("nan")), "in -1..1"),
        (replace(OPINION, score=float("inf")), "finite"),
        (replace(OPINION, score="high"), "finite"),  # type: ignore[arg-type]
        (replace(OPINION, hints="Use euros."), "tuple of texts"),  # type: ignore[arg-type]
        (replace(OPINION, votes=None), "mine:reward gave the votes None; use a tuple of whole"),  # type: ignore[arg-type]
        (replace(OPINION, votes=(1, 0.5)), "tuple of whole numbers"),  # type: ignore[arg-type]
        (replace(OPINION, votes="11"), "tuple of whole numbers"),  # type: ignore[arg-type]
        (replace(OPINION, judge=None), "gave the judge None; use a text"),  # type: ignore[arg-type]
        (replace(OPINION, judge="me \ud83d"), r"gave the judge 'me \\ud83d'; use a text"),
        (replace(OPINION, detail=3), "gave the detail 3; use a text"),  # type: ignore[arg-type]
    ],
)
def test_what_a_reward_function_returns_is_checked(returned: object, problem: str) -> None:
    with pytest.raises(RewardError, match=problem):
        _reward(lambda turn, evidence: returned)


def test_numbers_of_numpy_and_lists_become_what_a_ledger_stores() -> None:
    given = replace(
        OPINION,
        votes=[np.int64(1), np.int8(-1)],
        score=np.float32(0.5),
        feedback=np.float64(-1.0),
        seconds=np.float32(2.0),
        hints=["Use euros."],
        detail="half a character \ud83d is escaped where it is stored",
    )
    got = _reward(lambda turn, evidence: given)
    assert json.loads(json.dumps(asdict(got))) == asdict(got) | {"votes": [1, -1], "hints": ["Use euros."]}
    assert (got.votes, got.score, got.feedback, got.seconds, got.hints) == ((1, -1), 0.5, -1.0, 2.0, ("Use euros.",))
    assert type(got.score) is type(got.feedback) is type(got.seconds) is float


@pytest.mark.parametrize("seconds", [None, "long", -1.0, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_measured(seconds: object) -> None:
    async def slow(turn: object, evidence: object) -> Judgement:
        await asyncio.sleep(0.02)
        return replace(OPINION, seconds=seconds)  # type: ignore[arg-type]

    assert 0.02 <= _reward(slow).seconds < 10.0


def test_a_reward_function_may_abstain_and_its_errors_are_its_own() -> None:
    assert _reward(lambda turn, evidence: replace(OPINION, verdict=None)).verdict is None
    with pytest.raises(ZeroDivisionError):
        _reward(lambda turn, evidence: 1 / 0)


def test_a_hint_function_is_checked_too() -> None:
    assert asyncio.run(HintFunction(lambda case, judgement: ["Use euros."], "mine").hints(CASE, OPINION)) == (
        "Use euros.",
    )
    for wrong in ("Use euros.", None, [1]):
        with pytest.raises(RewardError, match="tuple of texts"):
            asyncio.run(HintFunction(lambda case, judgement, wrong=wrong: wrong, "mine").hints(CASE, OPINION))


def my_own(*arguments: object) -> object:
    return ("Use one sentence.",) if isinstance(arguments[0], JudgeRequest) else OPINION


def test_settings_choose_the_source_of_hints_and_the_reward_function() -> None:
    engine = tokenizer = SimpleNamespace()
    assert isinstance(hint_source(HintsConfig(), engine, tokenizer), NoHints)  # type: ignore[arg-type]
    assert isinstance(hint_source(HintsConfig(source="quoting"), engine, tokenizer), QuotingHints)  # type: ignore[arg-type]
    mine = f"{__name__}:my_own"
    source = hint_source(HintsConfig(source=mine), engine, tokenizer)  # type: ignore[arg-type]
    assert asyncio.run(source.hints(CASE, OPINION)) == ("Use one sentence.",)
    reward = reward_function(JudgingConfig(kind=mine))
    assert reward is not None and asyncio.run(reward.judge(TURN, EVIDENCE)) == OPINION  # type: ignore[arg-type]
    assert reward_function(JudgingConfig()) is None and reward_function(JudgingConfig(kind="written")) is None


def test_an_engine_must_generate_only_for_what_is_written() -> None:
    written = JudgingConfig(kind="written"), HintsConfig(source="written")
    assert not engine_must_generate(JudgingConfig(), HintsConfig(source="quoting"))
    assert engine_must_generate(written[0], HintsConfig()) and engine_must_generate(JudgingConfig(), written[1])
    assert not engine_must_generate(JudgingConfig(), written[1], wants_hints=False)
    assert engine_must_generate(written[0], HintsConfig(), wants_hints=False)


@pytest.mark.parametrize("config", [JudgingConfig, HintsConfig])
def test_a_temperature_that_an_engine_refuses_is_refused_first(config: type[JudgingConfig] | type[HintsConfig]) -> None:
    assert [config(temperature=fine).temperature for fine in (0.0, 0.01)] == [0.0, 0.01]
    with pytest.raises(ValidationError, match=r"temperature\n.*0.001 is too low .* use 0 for greedy, or 0.01 and more"):
        config(temperature=0.001)
    for wrong in (float("inf"), float("nan"), -1.0):
        with pytest.raises(ValidationError, match="temperature"):
            config(temperature=wrong)


@pytest.mark.parametrize("reuse", ["session", "owner"])
def test_without_a_source_there_is_no_hint_to_reuse(reuse: str) -> None:
    with pytest.raises(ValidationError, match=rf"reuse: {reuse} has no hints .* source: none; set reuse to off"):
        HintsConfig(reuse=reuse)  # type: ignore[arg-type]
    assert HintsConfig(source="quoting", reuse=reuse).reuse == reuse  # type: ignore[arg-type]


def test_settings_that_name_nothing_are_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"kind 'majority' is unknown; choose one of probability, written or package"):
        JudgingConfig(kind="majority")
    with pytest.raises(ValueError, match=r"source 'user' is unknown; choose one of none, quoting, written or package"):
        HintsConfig(source="user")
    with pytest.raises(ValueError, match="needs model: policy"):
        TeacherConfig(version="current")
    with pytest.raises(ValueError, match="starting weights"):
        TeacherConfig(model="policy", version=-1)
    assert TeacherConfig(model="policy", version="current").version == "current"
