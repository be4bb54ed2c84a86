"""What people said stays out of the log: functions of the operator's that quote it, judges and teachers that fail."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clawrl.actors.admission import Admission
from clawrl.actors.judging_desk import JudgeCalls, JudgingDesk
from clawrl.config import JudgeArgs
from clawrl.judging.config import HintsConfig, JudgingConfig, TeacherConfig
from clawrl.judging.dispatch import judge_or_abstain, teach_or_mask
from clawrl.judging.panel import JudgePanel
from clawrl.judging.rewards import RewardFunction
from clawrl.judging.trouble import Trouble, Unanswered, answered, name_of, or_trouble, words_of
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.ledger.journal import _turn
from clawrl.messages import DropReason, Judgement, JudgeRequest, Message, TeacherRequest, Turn, TurnId, Verdict
from tests.ledger_kit import user, verdict
from tests.office import Office
from tests.privacy_kit import SECRET, said

CASE = JudgeRequest(turn_id=TurnId("t"), request=user(SECRET), response=SECRET, evidence=user(SECRET))
QUICK = JudgingConfig(attempts=2, backoff_s=0.0, timeout_s=5.0)


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    yield
    logged = [logging.Formatter().format(record) for record in caplog.get_records("call")]
    assert SECRET[:12] not in "\n".join(logged)
    assert logged, "it is said that something went wrong"


def quotes(turn: Turn) -> str | None:
    return f"says {turn.response_text}"


def fails(turn: Turn) -> str | None:
    raise ValueError(turn.response_text)


@pytest.mark.parametrize("one", [quotes, fails])
def test_what_a_filter_says_of_a_turn_is_not_logged(tmp_path: Path, one: Any, caplog: pytest.LogCaptureFixture) -> None:
    admission = Admission(Office(tmp_path).deployment)
    admission._extra = [one]
    turn = said("t", user("hi"), SECRET + " and a few words more to pass the other filters")
    with caplog.at_level(logging.DEBUG):
        against = asyncio.run(admission.reason_against(turn))
    assert against is not None and against.reason is DropReason.REFUSED_BY_FILTER
    assert against.detail.endswith(f":{one.__name__}") and SECRET not in against.detail + caplog.text
    assert SECRET in against.words


class Quotes:
    """As a judge, as hints, as a teacher: an error with all that it was given."""

    async def judge(self, case: JudgeRequest) -> Judgement:
        raise ValueError(f"cannot judge {case.response}")

    async def hints(self, case: JudgeRequest, judgement: Judgement) -> tuple[str, ...]:
        raise ValueError(f"no hint for {case.response}")

    async def targets(self, request: TeacherRequest) -> Any:
        raise ValueError(f"cannot render {request.messages}")


class Judges:
    async def judge(self, case: JudgeRequest) -> Judgement:
        return verdict(case.turn_id)


def test_a_judge_that_quotes_the_case_is_quoted_in_the_judgement_alone() -> None:
    judgement = asyncio.run(judge_or_abstain(Quotes().judge, CASE, QUICK))
    assert judgement.verdict is None and SECRET in judgement.detail, "which is sealed"


def test_hints_that_fail_are_quoted_in_the_judgement_alone() -> None:
    panel = JudgePanel(Judges(), Quotes(), HintsConfig())
    judgement = asyncio.run(panel.judge(CASE))
    assert judgement.verdict is Verdict.GOOD and SECRET in judgement.detail


def test_a_teacher_that_fails_is_not_quoted_at_all() -> None:
    ids = np.arange(3, dtype=np.int32)
    request = TeacherRequest(
        turn_id=TurnId("t"),
        messages=(Message(role="user", content=SECRET),),
        prompt_ids=ids,
        response_ids=ids,
        temperature=1.0,
        hints=(SECRET,),
    )
    assert asyncio.run(teach_or_mask(Quotes().targets, request, TeacherConfig(attempts=2))) is None


def returns_the_detail(turn: Turn, evidence: tuple[Message, ...]) -> Any:
    return replace(verdict(turn.turn_id), detail=[SECRET])


def test_a_replica_returns_its_trouble_since_what_it_raises_is_logged_by_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    function = RewardFunction(returns_the_detail, "mine:reward")
    turn = said("t", user("hi"), SECRET)
    trouble = asyncio.run(or_trouble(function.judge(turn, ())))
    assert isinstance(trouble, Trouble) and "RewardError" in trouble.name and "harbour" in trouble.words
    with pytest.raises(Unanswered) as caught:
        answered(trouble)
    assert SECRET[:12] not in str(caught.value) and words_of(caught.value) == trouble.words
    assert name_of(caught.value) == trouble.name

    async def ask(request: JudgeRequest) -> Judgement:
        return answered(trouble)  # type: ignore[return-value]

    assert "harbour" in asyncio.run(judge_or_abstain(ask, CASE, QUICK)).detail
    assert "RewardError at" in caplog.text, "where it went wrong is told"


def test_a_method_that_quotes_a_turn_is_not_logged() -> None:
    class Method:
        needs: frozenset[Any] = frozenset()

        def sample(self, turn: Turn, judgement: Judgement, teacher: Any) -> Any:
            raise ValueError(turn.response_text)

    async def nobody(request: Any) -> Any:
        raise AssertionError

    calls = JudgeCalls(judge=nobody, teach=nobody, vitals=nobody)
    desk = JudgingDesk(None, Method(), calls, JudgeArgs(), lambda: None)  # type: ignore[arg-type]
    assert desk.sample_of(said("t", user("hi"), SECRET), verdict("t"), None) is DropReason.MALFORMED


def test_a_line_of_a_journal_that_cannot_be_read_is_not_logged() -> None:
    text = json.dumps(
        {"owner": "ann", "turn": base64.b64encode(json.dumps({"finish_reason": SECRET}).encode()).decode()}
    ).encode()
    assert _turn(Codec(PlainVault()), b"%08x %s\n" % (zlib.crc32(text), text)) is None
