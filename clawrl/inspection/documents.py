"""Turns, sessions, versions and steps as rows of plain JSON. Every field is always there; what is not known is null.

Times are seconds since the epoch. ``seq`` is what the next page's ``before`` is.
"""

from __future__ import annotations

import math
from typing import Any

from clawrl.ledger.looking import SessionRow, VersionRow
from clawrl.ledger.views import StepRow, TurnRow
from clawrl.messages import PolicyVersion
from clawrl.training.staleness import lag_histogram


def turn_document(row: TurnRow) -> dict[str, Any]:
    """One turn for inspection, without its text."""
    return {
        "seq": row.seq,
        "turn_id": row.turn_id,
        "owner": row.owner,
        "session": row.session,
        "parent": row.parent,
        "kind": row.kind.value,
        "state": row.state.value,
        "drop_reason": row.drop_reason.value if row.drop_reason else None,
        "verdict": None if row.verdict is None else int(row.verdict),
        "score": finite(row.score),
        "reward": row.reward,
        "hints": row.hints,
        "taught": row.taught,
        "step": row.step,
        "version": row.oldest_version,
        "newest_version": row.newest_version,
        "prompt_tokens": row.prompt_tokens,
        "response_tokens": row.response_tokens,
        "finished_at": row.finished_at,
        "state_at": row.state_at,
    }


def finite(value: float | None) -> float | None:
    """JSON knows no infinity, and a judge of somebody's own may."""
    return value if value is not None and math.isfinite(value) else None


def session_document(row: SessionRow) -> dict[str, Any]:
    return {
        "seq": row.last_seq,
        "session": row.session,
        "owner": row.owner,
        "named": not row.implicit,
        "active": row.active,
        "turns": row.turns,
        "by_state": {state.value: count for state, count in row.by_state.items()},
        "first_at": row.first_at,
        "last_at": row.last_at,
        "last_turn": row.last_turn,
    }


def version_document(row: VersionRow, *, current: int | None, kept: bool, step: StepRow | None) -> dict[str, Any]:
    """``kept``: its weights are on disk, so that it can be rolled back to. ``step`` made it, where that is known."""
    version = row.version
    return {
        "version": version.version,
        "step": version.step,
        "published_at": version.published_at,
        "current": version.version == current,
        "kept": kept,
        "good": row.good,
        "rolled_back_to": version.stats.get("rolled_back_to"),
        "rolled_back_from": version.stats.get("rolled_back_from"),
        "stats": version_stats(version, step),
    }


def version_stats(version: PolicyVersion, step: StepRow | None) -> dict[str, Any]:
    """What the step that made a version measured, if that is known, and what publishing it did."""
    trained = {} if step is None else {**step.stats, "reward_mean": step.reward_mean}
    return {**trained, **version.stats}


def step_document(row: StepRow) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "step": row.step,
        "run": row.run_id,
        "state": row.state.value,
        "at": row.at,
        "turns": row.turns,
        "reward_mean": row.reward_mean,
        "accepted_share": row.stats.get("accepted_share"),
        "lag": lag_histogram([row.stats]),
        "stats": dict(row.stats),
    }
