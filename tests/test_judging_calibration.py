"""The report about a judge says what a count by hand would say."""

from __future__ import annotations

import asyncio
import io
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from clawrl.judging import metrics
from clawrl.judging.calibration import CalibrationError, LabelledCase, calibrate, read_cases, report, tables
from clawrl.messages import Judgement, JudgeRequest, Message, TurnId, Verdict

RNG = np.random.default_rng(0)
# Few different values, so that there are ties.
LABELS = RNG.choice([1, 0, -1], 80)
SCORES = np.round(RNG.normal(size=80) + 0.8 * LABELS + 0.5, 1)


def _judgement(verdict: int | None, score: float | None = None) -> Judgement:
    return Judgement(
        turn_id=TurnId("t"),
        verdict=None if verdict is None else Verdict(verdict),
        score=score,
        votes=(),
        judge="fake",
        seconds=0.0,
    )


def test_the_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    pairs = [(g > b) + 0.5 * (g == b) for g, b in product(SCORES[LABELS == 1], SCORES[LABELS == -1])]
    assert metrics.auc(LABELS, SCORES) == pytest.approx(np.mean(pairs))
    assert metrics.auc(np.array([1, 1]), np.array([1.0, 2.0])) is None


def test_no_other_threshold_separates_better() -> None:
    def quality(threshold: float) -> float:
        verdicts = np.where(threshold < SCORES, 1, -1)
        return metrics.balanced_accuracy(LABELS, verdicts) or 0.0

    found = metrics.best_threshold(LABELS, SCORES)
    assert found is not None
    threshold, reached = found
    assert quality(threshold) == pytest.approx(reached)
    assert reached == pytest.approx(max(quality(other) for other in np.arange(-5, 5, 0.049)))
    assert metrics.best_threshold(np.array([1, 1]), np.array([1.0, 2.0])) is None


def test_no_other_margin_gives_better_recall_and_none_is_wide_without_need() -> None:
    def quality(margin: float) -> float:
        verdicts = [1 if score > margin else -1 if score < -margin else 0 for score in SCORES]
        right = [
            [v == label for v, truth in zip(verdicts, LABELS, strict=True) if truth == label] for label in (1, 0, -1)
        ]
        return float(np.mean([np.mean(side) for side in right]))

    found = metrics.best_margin(LABELS, SCORES)
    assert found is not None
    margin, reached = found
    assert margin >= 0 and quality(margin) == pytest.approx(reached)
    assert reached == pytest.approx(max(quality(other) for other in np.arange(0, 5, 0.049)))
    told = LABELS != 0
    assert metrics.best_margin(LABELS[told], SCORES[told])[0] == 0.0  # type: ignore[index]


def test_reliability_compares_what_is_said_with_what_is_true_in_ten_bins() -> None:
    labels = np.array([1, 1, -1, -1, 1, 0])
    scores = np.array([0.1, 0.2, 0.3, -4.0, 900.0, 0.1])
    bins, error = metrics.reliability(labels, scores)
    p = 1 / (1 + np.exp(-scores[:4]))
    assert [(b.low, b.high, b.cases) for b in bins] == [(0.0, 0.1, 1), (0.5, 0.6, 3), (0.9, 1.0, 1)]
    assert [b.good for b in bins] == pytest.approx([0.0, 2 / 3, 1.0])
    assert [b.predicted for b in bins] == pytest.approx([p[3], p[:3].mean(), 1.0])
    assert error == pytest.approx((p[3] + 3 * abs(p[:3].mean() - 2 / 3)) / 5)
    assert metrics.reliability(np.array([0]), np.array([1.0])) == ((), None)


def test_a_perfect_judge_and_its_opposite_stand_at_the_ends_of_every_scale() -> None:
    labels = [1, 1, -1, 0]
    perfect = report(labels, [_judgement(label, 3.0 * label) for label in labels])
    assert (perfect.accuracy, perfect.balanced_accuracy, perfect.auc, perfect.threshold_accuracy) == (1, 1, 1, 1)
    assert perfect.threshold == 0.0 and perfect.margin_accuracy == 1.0 and perfect.margin == 0.0
    opposite = report(labels, [_judgement(-label, -3.0 * label) for label in labels])
    assert (opposite.accuracy, opposite.balanced_accuracy, opposite.auc) == (0.25, 0.0, 0.0)


def test_abstentions_are_counted_apart_and_a_neutral_verdict_on_a_good_case_is_wrong() -> None:
    labels = [1, 1, 1, -1, -1, 0]
    found = report(labels, [_judgement(verdict) for verdict in (1, 0, None, -1, 1, 0)])
    assert (found.cases, found.abstained, found.scored) == (6, 1, 0)
    assert found.accuracy == pytest.approx(3 / 5) and found.balanced_accuracy == pytest.approx(1 / 2)
    assert found.confusion == {
        "1": {"1": 1, "0": 1, "-1": 0, "abstained": 1},
        "0": {"1": 0, "0": 1, "-1": 0, "abstained": 0},
        "-1": {"1": 1, "0": 0, "-1": 1, "abstained": 0},
    }
    assert found.auc is found.threshold is found.margin is found.calibration_error is None


def test_a_judge_that_always_abstains_has_no_accuracy() -> None:
    found = report([1, -1], [_judgement(None), _judgement(None)])
    assert found.abstained == 2 and found.accuracy is None and found.balanced_accuracy is None


class CountingJudge:
    def __init__(self, error: Exception | None = None) -> None:
        self.running = self.most = 0
        self._error = error

    async def judge(self, request: JudgeRequest) -> Judgement:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        if self._error:
            raise self._error
        good = "thanks" in request.evidence[0].content
        return _judgement(1 if good else -1, 2.0 if good else -1.0)


def _case(evidence: str, label: int) -> LabelledCase:
    return LabelledCase(request=(), response="", evidence=(Message(role="user", content=evidence),), label=label)


def test_every_case_is_judged_a_few_at_a_time_and_compared_with_its_own_label() -> None:
    judge = CountingJudge()
    cases = [_case("thanks", 1), _case("no", -1), _case("no", 1)] * 4
    found = asyncio.run(calibrate(judge, cases, 3))
    assert judge.most == 3 and found.cases == 12 and found.accuracy == pytest.approx(2 / 3)
    assert json.loads(json.dumps(found.as_dict()))["auc"] == pytest.approx(0.75)
    console = Console(width=100, file=io.StringIO())
    for table in tables(found):
        console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.667" in shown and "abstained" in shown and "sigmoid" in shown


def test_a_judge_that_fails_fails_the_calibration_with_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="it broke"):
        asyncio.run(calibrate(CountingJudge(RuntimeError("it broke")), [_case("no", 1)], 1))


LINE = {"request": "tell me", "response": "a list", "evidence": "no", "label": -1}


def test_cases_are_read_from_texts_and_from_messages(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    messages = [{"role": "tool", "content": "42"}, {"role": "user", "content": "thanks"}]
    file.write_text(json.dumps(LINE) + "\n\n" + json.dumps({**LINE, "evidence": messages, "label": 1}) + "\n")
    first, second = read_cases(file)
    assert first == LabelledCase(
        request=(Message(role="user", content="tell me"),),
        response="a list",
        evidence=(Message(role="user", content="no"),),
        label=-1,
    )
    assert [(m.role, m.content) for m in second.evidence] == [("tool", "42"), ("user", "thanks")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "exactly request, response, evidence, label"),
        (json.dumps({**LINE, "note": 1}), "exactly request"),
        (json.dumps({key: LINE[key] for key in ("request", "response", "label")}), "exactly request"),
        (json.dumps({**LINE, "response": None}), "response must be a text"),
        (json.dumps({**LINE, "label": True}), "label True must be"),
        (json.dumps({**LINE, "label": 1.0}), "label 1.0 must be"),
        (json.dumps({**LINE, "label": 2}), "label 2 must be"),
        (json.dumps({**LINE, "label": "1"}), "label '1' must be"),
        (json.dumps({**LINE, "evidence": 3}), "evidence must be a text or a list"),
        (json.dumps({**LINE, "request": [{"role": "user"}]}), r"request\[0\] must have exactly role and content"),
        (json.dumps({**LINE, "request": ["no"]}), r"request\[0\]"),
        (json.dumps({**LINE, "request": [{"role": "user", "content": 1}]}), r"request\[0\]"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_what_is_wrong(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(LINE) + "\n" + line)
    with pytest.raises(CalibrationError, match=rf"cases.jsonl:2: .*{problem}"):
        read_cases(file)


def test_a_file_without_cases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text("\n")
    with pytest.raises(CalibrationError, match="no case"):
        read_cases(tmp_path / "cases.jsonl")
