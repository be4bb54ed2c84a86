"""Requests as real clients send them, with invented texts, from ``fixtures/wire``.

One file is one request: method, path with its query, headers as the client spells them, and the decoded body.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "fixtures" / "wire"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def names() -> list[str]:
    """Every fixture, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def load(name: str) -> WireRequest:
    """A fresh copy each time. Raises ``FileNotFoundError`` for a name that is not among `names`."""
    return WireRequest(**json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
