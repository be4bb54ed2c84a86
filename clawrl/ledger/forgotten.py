"""What became of turns that were forgotten, in figures: added up batch by batch, and kept beside the names until told.

Counts, steps and nothing that says who or what it was, so that a crash takes nothing from the report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Self

ASKED = "somebody asked for it"
EVIDENCE = "its evidence was forgotten"
NO_KEY = "the key of its owner is gone"
"""What the log of a turn says of why it was dropped as ``forgotten``; nothing where it may have been its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """How many turns there were, were on their way, and are deleted but for their count.

    ``steps`` learned from their answers; ``evidence_steps`` from answers that their words were evidence or hints for.
    ``keys`` is how many were deleted.
    """

    turns: int = 0
    dropped: int = 0
    deleted: int = 0
    unanswered: int = 0
    evidence: int = 0
    leases: int = 0
    keys: int = 0
    steps: frozenset[int] = frozenset()
    evidence_steps: frozenset[int] = frozenset()

    def __add__(self, other: Forgotten) -> Forgotten:
        return Forgotten(
            turns=self.turns + other.turns,
            dropped=self.dropped + other.dropped,
            deleted=self.deleted + other.deleted,
            unanswered=self.unanswered + other.unanswered,
            evidence=self.evidence + other.evidence,
            leases=self.leases + other.leases,
            keys=self.keys + other.keys,
            steps=self.steps | other.steps,
            evidence_steps=self.evidence_steps | other.evidence_steps,
        )

    @property
    def anything(self) -> bool:
        return self != Forgotten()

    def pack(self) -> str:
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(row, default=sorted)

    @classmethod
    def unpack(cls, text: str) -> Self:
        row: dict[str, Any] = json.loads(text)
        for name in ("steps", "evidence_steps"):
            row[name] = frozenset(row.get(name, ()))
        return cls(**row)
