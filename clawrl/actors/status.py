"""The status document: one JSON value that says what the system did and is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clawrl.config import Deployment
from clawrl.inspection.documents import version_stats
from clawrl.ledger.store import Ledger
from clawrl.ledger.views import Counts, StepRow, StepState
from clawrl.messages import DropReason
from clawrl.training.staleness import StalenessConfig, lag_histogram


def status_document(deployment: Deployment, ledger: Ledger) -> dict[str, Any]:
    """The part of the status that the ledger knows. Versions are newest first."""
    current, pause, counts = ledger.current_version(), ledger.paused(), ledger.counts()
    newest = ledger.steps(200)
    steps = {step.step: step for step in reversed(newest)}
    versions: list[dict[str, Any]] = [
        {
            "version": version.version,
            "step": version.step,
            "published_at": version.published_at,
            "stats": version_stats(version, steps.get(version.step)),
        }
        for version in ledger.versions(200)
    ]
    holds = [v["stats"]["hold_ms"] for v in versions if v["stats"].get("committed")]
    return {
        "name": deployment.name,
        "version": current.version if current else 0,
        "step": current.step if current else 0,
        "paused": pause is not None,
        "pause_reason": pause.reason if pause else None,
        "turns": counts.as_dict(),
        "staleness": _staleness(deployment.trainer.training.staleness, newest, counts),
        "sessions": {"active": ledger.active_sessions()},
        "versions": versions,
        "holds_ms": {"p50": percentile(holds, 50), "p95": percentile(holds, 95), "count": len(holds)},
        "judge": asdict(ledger.judge_stats()),
    }


def _staleness(config: StalenessConfig, steps: Sequence[StepRow], counts: Counts) -> dict[str, Any]:
    """How old the samples of the newest steps were, in optimizer steps, and how many turns ever were too old."""
    taken = [step for step in steps if step.state is not StepState.UNDONE]
    return {
        "max_steps": config.max_steps,
        "limit": config.limit,
        "lag": lag_histogram(step.stats for step in taken),
        "of_steps": len(taken),
        "dropped": counts.dropped.get(DropReason.STALE, 0),
    }


def percentile(values: Sequence[float], rank: float) -> float | None:
    """The smallest value that at least ``rank`` percent do not exceed; ``None`` of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    index = max(0, -(-len(ordered) * rank // 100) - 1)
    return ordered[int(index)]
