"""What is measured, the rows that say so, and the table of them. Needs the standard library only.

`FIGURES` is the list of every figure of every section: what a section did not report stands in the table as missing,
with the reason, and counts as a failure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_PUBLISHED = (("digest", "s"), ("hand-over", "s"), ("hold", "ms"), ("carried", "requests"), ("after - cold", "nats"))

FIGURES: dict[str, tuple[tuple[str, str], ...]] = {
    "weights": (("parameters", "millions"), ("folder", "GB"), ("made in", "s")),
    "trainer": (("step", "s"), ("speed", "tokens/s"), ("MFU", "%"), ("changed", "steps"), ("peak memory", "GB")),
    "engine": (
        ("start", "s"),
        ("first token", "ms"),
        ("alone", "tokens/s"),
        ("full batch", "tokens/s"),
        ("peak memory", "GB"),
    ),
    "parity": (
        ("sampled - trainer, mean", "nats"),
        ("sampled - trainer, max", "nats"),
        ("scored - trainer, max", "nats"),
        ("peak memory", "GB"),
    ),
    "publish": (
        ("size", "GB"),
        *((f"pointers: {figure}", unit) for figure, unit in _PUBLISHED),
        *((f"gloo: {figure}", unit) for figure, unit in (("gather", "s"), *_PUBLISHED)),
        ("before - cold, other version", "nats"),
        ("ipc: hand-over", "s"),
        ("peak memory", "GB"),
    ),
}


class Verdict(enum.StrEnum):
    """``NONE``: a figure that nothing was asked of."""

    NONE = ""
    OK = "ok"
    FAILED = "FAILED"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``section`` may carry a data type after the name: ``parity float32``. Sizes are in powers of ten."""

    shape: str
    section: str
    figure: str
    value: float | None
    unit: str
    verdict: Verdict = Verdict.NONE
    note: str = ""


def unit_of(section: str, figure: str) -> str:
    return dict(FIGURES[section.split()[0]])[figure]


def complete(shape: str, section: str, rows: Iterable[Row], reason: str) -> list[Row]:
    """The section's rows in order, with a missing one, for ``reason``, wherever none was reported."""
    reported = {row.figure: row for row in rows}
    return [
        reported.get(figure)
        or Row(
            shape=shape,
            section=section,
            figure=figure,
            value=None,
            unit=unit,
            verdict=Verdict.MISSING,
            note=reason or "the section ended without it",
        )
        for figure, unit in FIGURES[section.split()[0]]
    ]


def failures(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.verdict in (Verdict.FAILED, Verdict.MISSING)]


def table(rows: Sequence[Row]) -> str:
    head = ("shape", "section", "figure", "value", "unit", "check", "note")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    # Numbers end where their column ends; the last column needs no padding.
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column == 3 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_json(rows: Iterable[Row], **about: Any) -> dict[str, Any]:
    return {**about, "rows": [asdict(row) for row in rows]}


def _cells(row: Row) -> tuple[str, ...]:
    value = "-" if row.value is None else _number(row.value)
    return row.shape, row.section, row.figure, value, row.unit, row.verdict, row.note


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2e}"
