"""A judge that sees everything, says what it means, and never turns a failure into a number."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from clawrl.engine.protocol import ScoreRequest, Scores
from clawrl.judging.config import HintsConfig, JudgingConfig
from clawrl.judging.dispatch import judge_or_abstain
from clawrl.judging.errors import JudgeError
from clawrl.judging.panel import JudgePanel
from clawrl.judging.probability import ProbabilityJudge, common_prefix, verdict_of
from clawrl.judging.text import shorten
from clawrl.messages import Judgement, JudgeRequest, Message, TurnId, Verdict
from tests.idle_clock import run_on_idle_clock

CASE = JudgeRequest(
    turn_id=TurnId("t"),
    request=(Message(role="user", content="tell me about REQUEST"),),
    response="a RESPONSE with\nlines",
    evidence=(Message(role="tool", content="EVIDENCE one"), Message(role="user", content="EVIDENCE two")),
)
QUICK = JudgingConfig(attempts=3, backoff_s=0.0, timeout_s=0.2)


class FakeEngine:
    """Gives log-odds by a rule over the text it is shown."""

    def __init__(self, tokenizer, odds) -> None:  # type: ignore[no-untyped-def]
        self.tokenizer, self.odds, self.seen, self.asked = tokenizer, odds, [], []

    async def score(self, requests: list[ScoreRequest]) -> list[Scores]:
        answers = []
        for request in requests:
            text = self.tokenizer.decode(request.ids)
            self.seen.append(text)
            self.asked.append(request)
            assert request.start == len(request.ids) and len(request.token_ids) == 2
            answers.append(
                Scores(
                    logps=np.empty(0, np.float32),
                    version=0,
                    next_logps=np.array([self.odds(text), 0.0], dtype=np.float32),
                )
            )
        return answers


def _judge(tiny_folder: Path, odds, **settings):  # type: ignore[no-untyped-def]
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    engine = FakeEngine(tokenizer, odds)
    return ProbabilityJudge(engine, tokenizer, JudgingConfig(**settings), "fake"), engine  # type: ignore[arg-type]


def test_the_judge_sees_the_request_the_answer_and_all_the_evidence_with_its_roles(tiny_folder: Path) -> None:
    judge, engine = _judge(tiny_folder, lambda text: 1.0)
    judgement = asyncio.run(judge.judge(CASE))
    (shown,) = engine.seen
    for part in ("REQUEST", "a RESPONSE with lines", "[tool] EVIDENCE one EVIDENCE two"):
        assert part in shown
    assert shown.rstrip().endswith("Verdict:")
    assert judgement.verdict is Verdict.GOOD and judgement.votes == (1,) and judgement.score == pytest.approx(1.0)


def test_calibration_puts_zero_half_way_between_pleased_and_displeased_replies(tiny_folder: Path) -> None:
    def odds(text: str) -> float:
        reply = text.rsplit("Reply:", 1)[1]
        return (
            5.0 if "helpful" in reply or "goodbye" in reply or "EVIDENCE" in reply else 3.0 if "Next" in reply else 1.0
        )

    judge, engine = _judge(tiny_folder, odds)

    async def run() -> Judgement:
        assert await judge.calibrate() == pytest.approx(((5 + 5 + 3 + 1) / 4 + 1.0) / 2)
        return await judge.judge(CASE)

    judgement = asyncio.run(run())
    assert judgement.score == pytest.approx(5.0 - 2.25) and judgement.verdict is Verdict.GOOD
    assert all(text.rsplit("Reply:", 1)[1].strip() for text in engine.seen)


def test_a_judge_that_cannot_tell_pleased_from_displeased_is_refused_at_start(tiny_folder: Path) -> None:
    judge, _ = _judge(tiny_folder, lambda text: 1.0)
    with pytest.raises(JudgeError, match="choose another"):
        asyncio.run(judge.calibrate())


def test_the_margin_makes_room_for_neutral() -> None:
    assert [verdict_of(score, 0.5) for score in (-1.0, -0.5, 0.0, 0.5, 1.0)] == [-1, 0, 0, 0, 1]
    assert verdict_of(0.0, 0.0) is Verdict.NEUTRAL


def test_labels_that_the_model_cannot_tell_apart_are_refused_at_start(tiny_folder: Path) -> None:
    with pytest.raises(JudgeError, match="tokens for this model"):
        _judge(tiny_folder, lambda text: 0.0, labels=(" wonderful", " bad"))
    with pytest.raises(JudgeError, match="same token"):
        _judge(tiny_folder, lambda text: 0.0, labels=(" good", " good"))


def test_a_judge_that_gives_no_number_is_an_error_and_not_a_verdict(tiny_folder: Path) -> None:
    judge, _ = _judge(tiny_folder, lambda text: float("nan"))
    with pytest.raises(JudgeError, match="log-odds"):
        asyncio.run(judge.judge(CASE))


def test_every_case_shares_the_opening_whatever_the_tokenizer_joins_to_it(tiny_folder: Path) -> None:
    judge, engine = _judge(tiny_folder, lambda text: 1.0)

    async def run() -> None:
        for request in ("tell me", "\u00e9t\u00e9", ""):
            await judge.judge(replace(CASE, request=(Message(role="user", content=request),)))

    asyncio.run(run())
    first = engine.asked[0]
    for asked in engine.asked:
        assert asked.ids.tolist() == engine.tokenizer.encode(engine.tokenizer.decode(asked.ids))
        assert asked.shared == first.shared and (asked.ids[: asked.shared] == first.ids[: first.shared]).all()
    shown = engine.tokenizer.decode(first.ids[: first.shared])
    assert shown.endswith("The user asked:") and "that answers it" in shown


def test_a_common_prefix_ends_where_the_ids_differ() -> None:
    ids = np.array([5, 6, 7, 8], dtype=np.int32)
    assert common_prefix(ids, np.array([5, 6, 9], dtype=np.int32)) == 2
    assert common_prefix(ids, ids[:3]) == 3 and common_prefix(ids[:0], ids) == 0


def test_long_texts_keep_their_beginning_and_their_end() -> None:
    short = shorten("a" * 500 + "b" * 500, 100)
    assert len(short) == 100 and short.startswith("aaa") and short.endswith("bbb") and " ... " in short
    assert shorten("fits", 100) == "fits" and len(shorten("x" * 50, 8)) == 8


def _failing(times: int):  # type: ignore[no-untyped-def]
    calls = []

    async def ask(request: JudgeRequest) -> Judgement:
        calls.append(request)
        if len(calls) <= times:
            raise RuntimeError("no answer")
        return Judgement(
            turn_id=request.turn_id, verdict=Verdict.BAD, score=-1.0, votes=(-1,), judge="fake", seconds=0.0
        )

    return ask, calls


def test_a_failed_judgement_is_tried_again() -> None:
    ask, calls = _failing(2)
    judgement = asyncio.run(judge_or_abstain(ask, CASE, QUICK))
    assert judgement.verdict is Verdict.BAD and len(calls) == 3


def test_a_judge_that_keeps_failing_abstains_with_the_reason_and_never_says_zero() -> None:
    ask, calls = _failing(99)
    judgement = asyncio.run(judge_or_abstain(ask, CASE, QUICK))
    assert judgement.verdict is None and judgement.score is None and "no answer" in judgement.detail
    assert len(calls) == 3


def test_a_judge_that_hangs_is_given_up() -> None:
    async def ask(request: JudgeRequest) -> Judgement:
        await asyncio.sleep(3600)
        raise AssertionError

    judgement = run_on_idle_clock(judge_or_abstain(ask, CASE, QUICK, hints_timeout_s=0.05))
    assert judgement.verdict is None and "TimeoutError" in judgement.detail


def test_hints_that_take_longer_than_a_verdict_may_cost_no_verdict() -> None:
    class Verdicts:
        async def judge(self, request: JudgeRequest) -> Judgement:
            return await _failing(0)[0](request)

    class Slow:
        asked = 0

        async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
            self.asked += 1
            await asyncio.sleep(3600)
            raise AssertionError

    slow, hints = Slow(), HintsConfig(timeout_s=QUICK.timeout_s + 0.1)
    ask = JudgePanel(Verdicts(), slow, hints).judge
    judgement = run_on_idle_clock(judge_or_abstain(ask, CASE, QUICK, hints_timeout_s=hints.timeout_s))
    assert judgement.verdict is Verdict.BAD and "no hints: TimeoutError" in judgement.detail
    assert slow.asked == 1
