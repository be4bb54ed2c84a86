"""Checks and what they found.

A check is a function of the thing under test that raises `Broken` with what is wrong; its name is the promise in words.
Any other exception is the thing's own and breaks the promise just as well.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

Check = Callable[[Any], None]


class Broken(Exception):
    """A promise that was not kept, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    check: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractReport:
    kind: str
    path: str
    rows: tuple[CheckRow, ...]

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)


def require(kept: bool, problem: str) -> None:
    if not kept:
        raise Broken(problem)


def run_check(check: Check, subject: Any) -> CheckRow:
    name = check.__name__.replace("_", " ")
    try:
        check(subject)
    except Broken as broken:
        return CheckRow(check=name, passed=False, detail=str(broken))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return CheckRow(check=name, passed=False, detail=detail)
    return CheckRow(check=name, passed=True)


def same(left: Any, right: Any) -> bool:
    """Equality that goes into dataclasses, mappings and sequences, and compares arrays bit by bit, NaN equal to NaN."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        a, b = np.asarray(left), np.asarray(right)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(left) is not type(right):
        return False
    if is_dataclass(left):
        return all(same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, Sequence) and not isinstance(left, str):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
