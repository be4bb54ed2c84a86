"""What the demo found: pure functions from what was observed to figures, checks, tables and files.

Two questions, each with checks of its own. Did the loop close: versions published, nothing failed, nothing lost? Did
the policy learn: do first answers keep to the preference at the end and not at the start, and are they still whole,
fluent and on topic? By version, shares and means are over all answers of conversations; goodbyes and held-out questions
are not among them.
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from clawrl.evaluation.blocks import BLOCK, Block, block_of, blocks, by_version, sessions_until_held
from clawrl.evaluation.demo_users import Answer
from clawrl.evaluation.observations import Observations

REQUIRED_VERSIONS = 10

MOST_ACCEPTED_AT_START = 0.25
LEAST_ACCEPTED_AT_END = 0.75
LEAST_WORDS_AT_END = 8.0
# Nats per token, and a share: what keeping to a preference may cost a healthy policy.
LARGEST_FLUENCY_LOSS = 0.3
LEAST_LIFT_KEPT = 0.5
MOST_SECONDS = 720.0


class About(enum.StrEnum):
    LOOP = "did the loop close?"
    LEARNING = "did it learn?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    passed: bool
    detail: str
    about: About = About.LOOP


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """What one policy version answered. ``reward`` is the mean of the batch that this version was trained on."""

    version: int
    answers: int
    accepted_share: float | None
    mean_words: float | None
    reward: float | None


def checks(seen: Observations, required_versions: int = REQUIRED_VERSIONS) -> list[Check]:
    """Each line can fail on its own."""
    return [*loop_checks(seen, required_versions), *learning_checks(seen)]


def loop_checks(seen: Observations, required_versions: int) -> list[Check]:
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


def learning_checks(seen: Observations) -> list[Check]:
    """Over first answers: those of the first and of the last sessions that began, apart from each other."""
    answers = seen.record.first_answers()
    measured = _learned("measured", seen.not_measured is None, seen.not_measured or "the starting model was asked")
    if len(answers) < 2 * BLOCK:
        detail = f"{len(answers)} first answers; {2 * BLOCK} are needed to compare a start with an end"
        return [_learned("enough sessions", False, detail), measured]
    first, last = block_of(answers[:BLOCK]), block_of(answers[-BLOCK:])
    assert first is not None and last is not None
    given = [answer for answer in seen.record.answers if answer.kind != "goodbye"]
    empty = sum(not answer.text.strip() for answer in given)
    total = seen.seconds.get("total")
    return [
        _learned(
            "untaught at the start",
            first.accepted_share <= MOST_ACCEPTED_AT_START,
            f"{first.accepted_share:.0%} of the first {BLOCK} accepted, at most {MOST_ACCEPTED_AT_START:.0%} wanted",
        ),
        _learned(
            "the preference holds at the end",
            last.accepted_share >= LEAST_ACCEPTED_AT_END,
            f"{last.accepted_share:.0%} of the last {BLOCK} accepted, at least {LEAST_ACCEPTED_AT_END:.0%} wanted",
        ),
        _learned(
            "answers still say something",
            last.mean_words >= LEAST_WORDS_AT_END,
            f"{last.mean_words:.1f} words in the last {BLOCK}, at least {LEAST_WORDS_AT_END:g} wanted",
        ),
        _learned("no empty answer", empty == 0, f"{empty} of {len(given)} answers are empty"),
        measured,
        _fluency_check(seen),
        _lift_check(seen),
        _learned(
            "in time",
            total is not None and total <= MOST_SECONDS,
            f"{'-' if total is None else f'{total:.0f}'} s in all, at most {MOST_SECONDS:.0f} wanted",
        ),
    ]


def _fluency_check(seen: Observations) -> Check:
    name = "as fluent as before"
    if seen.start is None or seen.end is None:
        return _learned(name, False, _unmeasured(seen))
    lost = seen.start.fluency - seen.end.fluency
    return _learned(
        name,
        lost <= LARGEST_FLUENCY_LOSS,
        f"{seen.start.fluency:.2f} at version 0, {seen.end.fluency:.2f} at the end (nats per token by the starting "
        f"model, {seen.start.turns} and {seen.end.turns} answers); {LARGEST_FLUENCY_LOSS:g} may be lost",
    )


def _lift_check(seen: Observations) -> Check:
    name = "still about the question"
    if seen.start is None or seen.end is None or seen.start.lift is None or seen.end.lift is None:
        return _learned(name, False, _unmeasured(seen))
    return _learned(
        name,
        seen.end.lift >= LEAST_LIFT_KEPT * seen.start.lift and seen.end.lift > 0.0,
        f"a lift of {seen.start.lift:.2f} at version 0, {seen.end.lift:.2f} at the end (by so many nats per "
        f"token the question makes its answer likelier); {LEAST_LIFT_KEPT:.0%} must stay",
    )


def _unmeasured(seen: Observations) -> str:
    return "not measured" if seen.not_measured else "not measured: the ledger holds no such answers"


def _learned(name: str, passed: bool, detail: str) -> Check:
    return Check(name=name, passed=passed, detail=detail, about=About.LEARNING)


def version_rows(answers: Iterable[Answer], versions: Mapping[int, Mapping[str, Any]]) -> list[VersionRow]:
    grouped = by_version([answer for answer in answers if answer.kind == "talk"])
    rows = []
    for version in sorted(grouped.keys() | versions.keys()):
        given = grouped.get(version, [])
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
        "sessions_until_held": sessions_until_held(seen.record.first_answers()),
        "first_answers": {
            "blocks": [asdict(block) for block in blocks(seen.record.first_answers())],
            "first": _block(seen.record.first_answers()[:BLOCK]),
            "last": _block(seen.record.first_answers()[-BLOCK:]),
        },
        "measures": {
            "version_0": None if seen.start is None else asdict(seen.start),
            "last": None if seen.end is None else asdict(seen.end),
        },
        "ended": seen.ended,
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
    table = Table(title=" ".join(dict.fromkeys(check.about for check in verdicts)), title_justify="left")
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


def _block(answers: Sequence[Answer]) -> dict[str, Any] | None:
    block: Block | None = block_of(answers)
    return None if block is None else asdict(block)


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
