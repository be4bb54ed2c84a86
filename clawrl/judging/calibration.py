"""How far a judge can be trusted: it judges cases whose answer is known, and the report compares.

A file of cases has one JSON object a line with exactly ``request``, ``response``, ``evidence`` and ``label``: texts of
the user, or lists of ``{"role", "content"}``; the label is 1, 0 or -1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from clawrl.judging import metrics
from clawrl.judging.panel import VerdictJudge
from clawrl.messages import Judgement, JudgeRequest, Message, TurnId

_FIELDS = ("request", "response", "evidence", "label")


class CalibrationError(ValueError):
    """A file of cases that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCase:
    """``label``: 1 the answer was good, -1 bad, 0 the evidence does not tell."""

    request: tuple[Message, ...]
    response: str
    evidence: tuple[Message, ...]
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """``accuracy`` and ``balanced_accuracy`` are over cases with a verdict, the second over good and bad ones only.

    ``confusion`` is by label, then by verdict. The rest needs a judge with scores: ``threshold`` is where good and bad
    part best and ``margin`` the best symmetric one, each with what it would achieve; see `clawrl.judging.metrics`.
    """

    cases: int
    abstained: int
    accuracy: float | None
    balanced_accuracy: float | None
    confusion: Mapping[str, Mapping[str, int]]
    scored: int
    auc: float | None
    threshold: float | None
    threshold_accuracy: float | None
    margin: float | None
    margin_accuracy: float | None
    reliability: tuple[metrics.Bin, ...]
    calibration_error: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


async def calibrate(judge: VerdictJudge, cases: Sequence[LabelledCase], concurrency: int) -> CalibrationReport:
    """Judge every case, ``concurrency`` at a time. A judge that fails fails the calibration."""
    slots = asyncio.Semaphore(concurrency)

    async def ask(index: int, case: LabelledCase) -> Judgement:
        async with slots:
            return await judge.judge(
                JudgeRequest(
                    turn_id=TurnId(f"case-{index}"),
                    request=case.request,
                    response=case.response,
                    evidence=case.evidence,
                )
            )

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(index, case)) for index, case in enumerate(cases)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return report([case.label for case in cases], [task.result() for task in tasks])


def report(labels: Sequence[int], judgements: Sequence[Judgement]) -> CalibrationReport:
    """Compare; ``judgements[i]`` is about the case of ``labels[i]``."""
    verdicts = [None if judgement.verdict is None else int(judgement.verdict) for judgement in judgements]
    decided = [(label, verdict) for label, verdict in zip(labels, verdicts, strict=True) if verdict is not None]
    truth, said = np.array(decided, dtype=np.int64).reshape(-1, 2).T
    scored = [(label, j.score) for label, j in zip(labels, judgements, strict=True) if j.score is not None]
    known = np.array([label for label, _ in scored], dtype=np.int64)
    scores = np.array([score for _, score in scored], dtype=np.float64)
    threshold = metrics.best_threshold(known, scores)
    margin = metrics.best_margin(known, scores)
    bins, error = metrics.reliability(known, scores)
    return CalibrationReport(
        cases=len(labels),
        abstained=len(labels) - len(decided),
        accuracy=float(np.mean(truth == said)) if decided else None,
        balanced_accuracy=metrics.balanced_accuracy(truth, said),
        confusion=metrics.confusion(labels, verdicts),
        scored=len(scored),
        auc=metrics.auc(known, scores),
        threshold=threshold[0] if threshold else None,
        threshold_accuracy=threshold[1] if threshold else None,
        margin=margin[0] if margin else None,
        margin_accuracy=margin[1] if margin else None,
        reliability=bins,
        calibration_error=error,
    )


def tables(found: CalibrationReport) -> list[Table]:
    """The figures, the confusion matrix and, for a judge with scores, the reliability, for a terminal."""
    figures = Table(title="judge", title_justify="left", box=None, pad_edge=False, show_header=False)
    for name, value in found.as_dict().items():
        if name not in ("confusion", "reliability"):
            figures.add_row(name.replace("_", " "), _number(value))
    matrix = Table(title="cases by label and verdict", title_justify="left", box=None, pad_edge=False)
    matrix.add_column("label")
    for verdict in next(iter(found.confusion.values())):
        matrix.add_column(verdict, justify="right")
    for label, row in found.confusion.items():
        matrix.add_row(label, *map(str, row.values()))
    made = [figures, matrix]
    if found.reliability:
        bins = Table(title="sigmoid(score) and what was good", title_justify="left", box=None, pad_edge=False)
        for column in ("from", "to", "cases", "said", "good"):
            bins.add_column(column, justify="right")
        for entry in found.reliability:
            bins.add_row(*(_number(value) for value in asdict(entry).values()))
        made.append(bins)
    return made


def read_cases(path: Path) -> list[LabelledCase]:
    """All cases of a file. Raises `CalibrationError` with the line and the field."""
    cases = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                cases.append(_case(line))
            except ValueError as error:
                raise CalibrationError(f"{path}:{number}: {error}") from None
    if not cases:
        raise CalibrationError(f"{path}: there is no case in it")
    return cases


def _case(line: str) -> LabelledCase:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(value, dict) or set(value) != set(_FIELDS):
        raise ValueError(f"one object with exactly {', '.join(_FIELDS)} is needed")
    if not isinstance(value["response"], str):
        raise ValueError("response must be a text")
    if isinstance(value["label"], bool) or not isinstance(value["label"], int) or abs(value["label"]) > 1:
        raise ValueError(f"label {value['label']!r} must be 1, 0 or -1")
    return LabelledCase(
        request=_messages(value["request"], "request"),
        response=value["response"],
        evidence=_messages(value["evidence"], "evidence"),
        label=value["label"],
    )


def _messages(value: Any, field: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    if not isinstance(value, list):
        raise ValueError(f"{field} must be a text or a list of messages")
    for index, entry in enumerate(value):
        texts = isinstance(entry, dict) and all(isinstance(text, str) for text in entry.values())
        if not texts or set(entry) != {"role", "content"}:
            raise ValueError(f"{field}[{index}] must have exactly role and content, both texts")
    return tuple(Message(role=entry["role"], content=entry["content"]) for entry in value)


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
