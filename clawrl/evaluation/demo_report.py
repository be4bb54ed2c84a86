"""What the demo found: pure functions from what was observed to figures, checks, tables and files.

Shares and means are over the answers of conversations; goodbyes and held-out questions are not among
them. Nothing here has a threshold on how well the policy learned: the checks say whether the loop closed.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from clawrl.evaluation.demo_users import Answer, Record

REQUIRED_VERSIONS = 10


@dataclass(slots=True, kw_only=True)
class Observations:
    """Everything that a run left behind. ``versions``: published version -> its row of the status."""

    record: Record = field(default_factory=Record)
    before: list[Answer] = field(default_factory=list)
    after: list[Answer] = field(default_factory=list)
    versions: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    turns: Sequence[Mapping[str, Any]] = ()
    memory_mb: Mapping[str, Any] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """What one policy version answered. ``reward`` is the mean of the batch that this version was trained on."""

    version: int
    answers: int
    accepted_share: float | None
    mean_words: float | None
    reward: float | None


def checks(seen: Observations, required_versions: int = REQUIRED_VERSIONS) -> list[Check]:
    """Did the loop close? Each line can fail on its own."""
    published = len(seen.versions)
    turns: Mapping[str, Any] = seen.status.get("turns") or {}
    recorded, received = turns.get("recorded"), len(seen.record.answers)
    failures = seen.record.failures
    return [
        Check(
            name="versions published",
            passed=published >= required_versions,
            detail=f"{published}, at least {required_versions} wanted",
        ),
        Check(
            name="no failed request",
            passed=not failures,
            detail=f"{len(failures)} failed, {seen.record.requests} answers asked for"
            + (f"; the first: {failures[0]}" if failures else ""),
        ),
        Check(
            name="the ledger adds up",
            passed=turns.get("adds_up") is True,
            detail=f"by state: {dict(turns.get('by_state') or {})}",
        ),
        Check(
            name="every answer is recorded",
            passed=recorded == received and received > 0,
            detail=f"{recorded} turns in the ledger, {received} answers received",
        ),
        Check(
            name="nothing left running",
            passed=not seen.left_behind,
            detail="; ".join(seen.left_behind) or "the server stopped and took its processes along",
        ),
    ]


def version_rows(answers: Iterable[Answer], versions: Mapping[int, Mapping[str, Any]]) -> list[VersionRow]:
    by_version: dict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.kind == "talk" and answer.version is not None:
            by_version[answer.version].append(answer)
    rows = []
    for version in sorted(by_version.keys() | versions.keys()):
        given = by_version.get(version, [])
        rows.append(
            VersionRow(
                version=version,
                answers=len(given),
                accepted_share=fmean(answer.accepted for answer in given) if given else None,
                mean_words=fmean(answer.words for answer in given) if given else None,
                reward=(versions.get(version, {}).get("stats") or {}).get("reward_mean"),
            )
        )
    return rows


def judge_agreement(answers: Iterable[Answer], turns: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How often the judge's verdict on a turn is what the user's rule says of its text.

    Only answers that got feedback and a verdict of +1 or -1 are compared; the others are counted.
    """
    verdicts = {turn["turn_id"]: turn.get("verdict") for turn in turns}
    cells = {"good_and_accepted": 0, "good_but_rejected": 0, "bad_but_accepted": 0, "bad_and_rejected": 0}
    without = 0
    for answer in answers:
        if answer.kind != "talk":
            continue
        verdict = verdicts.get(answer.turn_id)
        if verdict not in (1, -1):
            without += 1
            continue
        if verdict == 1:
            cells["good_and_accepted" if answer.accepted else "good_but_rejected"] += 1
        else:
            cells["bad_but_accepted" if answer.accepted else "bad_and_rejected"] += 1
    compared = sum(cells.values())
    agreed = cells["good_and_accepted"] + cells["bad_and_rejected"]
    share = agreed / compared if compared else None
    return {"share": share, "compared": compared, "without_verdict": without, **cells}


def summary(seen: Observations, verdicts: Sequence[Check]) -> dict[str, Any]:
    talk = [answer for answer in seen.record.answers if answer.kind == "talk"]
    return {
        "passed": all(check.passed for check in verdicts),
        "checks": [asdict(check) for check in verdicts],
        "versions_published": len(seen.versions),
        "requests": seen.record.requests,
        "answers": len(seen.record.answers),
        "failures": seen.record.failures,
        "accepted_share": fmean(answer.accepted for answer in talk) if talk else None,
        "mean_words": fmean(answer.words for answer in talk) if talk else None,
        "by_version": [asdict(row) for row in version_rows(seen.record.answers, seen.versions)],
        "held_out": {"before": _held_out(seen.before), "after": _held_out(seen.after)},
        "judge_agreement": judge_agreement(seen.record.answers, seen.turns),
        "holds_ms": seen.status.get("holds_ms"),
        "judge": seen.status.get("judge"),
        "turns": seen.status.get("turns"),
        "unrecorded": seen.status.get("unrecorded"),
        "versions": [dict(seen.versions[version]) for version in sorted(seen.versions)],
        "memory_mb": dict(seen.memory_mb),
        "left_behind": seen.left_behind,
        "seconds": seen.seconds,
    }


def turn_lines(seen: Observations) -> Iterable[dict[str, Any]]:
    """One object per answer: what the client saw, and what the ledger says of that turn."""
    ledger = {turn["turn_id"]: turn for turn in seen.turns}
    for answer in seen.record.answers:
        turn = ledger.get(answer.turn_id or "", {})
        facts = {name: turn.get(name) for name in ("state", "verdict", "score", "drop_reason")}
        yield {**asdict(answer), "accepted": answer.accepted, "ledger": facts}


def write_files(seen: Observations, verdicts: Sequence[Check], folder: Path) -> None:
    with (folder / "turns.jsonl").open("w") as file:
        for line in turn_lines(seen):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    (folder / "summary.json").write_text(json.dumps(summary(seen, verdicts), indent=2, ensure_ascii=False) + "\n")


def held_out_table(before: Sequence[Answer], after: Sequence[Answer]) -> Table:
    """The same questions, answered by the first and by the last version."""
    later = {answer.question: answer for answer in after}
    earlier = {answer.question: answer for answer in before}
    table = Table(title="held-out questions, never trained on", show_lines=True)
    table.add_column("question", ratio=2)
    table.add_column(f"version {_versions(before)}", ratio=4)
    table.add_column(f"version {_versions(after)}", ratio=4)
    for question in dict.fromkeys([*earlier, *later]):
        table.add_row(question, _cell(earlier.get(question)), _cell(later.get(question)))
    table.add_section()
    table.add_row("accepted", _tally(before), _tally(after))
    return table


def checks_table(verdicts: Sequence[Check]) -> Table:
    table = Table(title="did the loop close?", title_justify="left")
    for name in ("check", "", "detail"):
        table.add_column(name)
    for check in verdicts:
        table.add_row(check.name, "[green]passed[/]" if check.passed else "[bold red]FAILED[/]", _plain(check.detail))
    return table


def figures_table(seen: Observations) -> Table:
    """Per version, for people; the same figures are in summary.json."""
    table = Table(title="by policy version", title_justify="left")
    for name in ("version", "answers", "accepted", "mean words", "reward of its batch"):
        table.add_column(name, justify="right")
    for row in version_rows(seen.record.answers, seen.versions):
        cells = [_figure(row.accepted_share), _figure(row.mean_words, 1), _figure(row.reward)]
        table.add_row(str(row.version), str(row.answers), *cells)
    return table


def _held_out(answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "versions": sorted({answer.version for answer in answers if answer.version is not None}),
        "accepted": sum(answer.accepted for answer in answers),
        "answered": len(answers),
        "mean_words": fmean(answer.words for answer in answers) if answers else None,
    }


def _versions(answers: Sequence[Answer]) -> str:
    return " and ".join(str(version) for version in _held_out(answers)["versions"]) or "unknown"


def _cell(answer: Answer | None, limit: int = 200) -> str:
    if answer is None:
        return "[red]no answer[/]"
    text = answer.text.strip()
    shown = text if len(text) <= limit else text[:limit] + "…"
    mark = "[green]✓[/]" if answer.accepted else f"[red]✗ {answer.objection}[/]"
    return f"{_plain(shown)}\n{mark} [dim]{answer.words} words[/]"


def _tally(answers: Sequence[Answer]) -> str:
    words = fmean(answer.words for answer in answers) if answers else 0.0
    return f"{sum(answer.accepted for answer in answers)} of {len(answers)}, {words:.0f} words on average"


def _plain(text: str) -> str:
    """Model text and server messages may hold brackets that are no markup of ours."""
    return text.replace("[", r"\[")


def _figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
