"""The figures of one run of the learning bench, as one JSON object. Pure functions over what the run left behind.

Everything is over first answers, in the order in which their sessions began. ``buckets`` of turns that the frozen model
was shown: ``first`` and ``last`` (16 answers each) and ``v0``, ``v1``, ... by version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from clawrl.evaluation.blocks import BLOCK, block_of, blocks, by_version, sessions_until_held, spread_out
from clawrl.evaluation.demo_users import Answer
from clawrl.evaluation.learning_plan import RunPlan, plan_facts
from clawrl.evaluation.measures import Measures
from clawrl.evaluation.observations import Observations

_MEASURED = ("fluency", "lift", "kl")
# The worst of many means over one or two answers would say more about those answers than about the policy.
_FEWEST_MEASURED = 4


def buckets_of(answers: Sequence[Answer], per_version: int) -> dict[str, list[Answer]]:
    """Which answers the frozen model is to be shown."""
    found = {f"v{version}": spread_out(given, per_version) for version, given in by_version(answers).items()}
    return {"first": list(answers[:BLOCK]), "last": list(answers[-BLOCK:]), **found}


def run_figures(
    plan: RunPlan,
    seen: Observations,
    measured: Mapping[str, Measures | None],
    tokens: Mapping[str, int],
    probes: Mapping[str, Any],
    stopped_by: str | None,
    held_at_step: int | None,
) -> dict[str, Any]:
    """``measured`` by bucket, ``tokens`` by turn id; ``stopped_by`` is the reason of an alarm that paused training.

    ``held_at_step`` is how many updates had been applied when the preference first held; None: never, or not asked.
    """
    answers = seen.record.first_answers()
    held, updates = sessions_until_held(answers), int(seen.status.get("step") or 0)
    versions = [
        {"version": version, **_group(given, measured.get(f"v{version}"), tokens)}
        for version, given in by_version(answers).items()
    ]
    return {
        "plan": plan_facts(plan),
        "ended": seen.ended,
        "stopped_by": stopped_by,
        "sessions": len(answers),
        "sessions_until_held": held,
        "updates": updates,
        "updates_past_held": None if held_at_step is None else updates - held_at_step,
        "versions_published": len(seen.versions),
        "blocks": [asdict(block) for block in blocks(answers)],
        "by_version": versions,
        "first": _group(answers[:BLOCK], measured.get("first"), tokens),
        "last": _group(answers[-BLOCK:], measured.get("last"), tokens),
        "after_held": None if held is None else bounds(answers[held:], versions),
        "probes": dict(probes),
        "failures": list(seen.record.failures),
        "left_behind": list(seen.left_behind),
        "seconds": dict(seen.seconds),
    }


def bounds(answers: Sequence[Answer], versions: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The worst of what followed once the preference held.

    Shares and lengths are over full blocks of sessions, or over the one short block that there is; what the frozen
    model says is over versions of which it was shown at least `_FEWEST_MEASURED` answers, None if there is none.
    """
    cut = blocks(answers)
    if not cut:
        return None
    cut = [block for block in cut if block.answers == BLOCK] or cut
    begun = min((answer.version for answer in answers if answer.version is not None), default=0)
    later = [row for row in versions if row["version"] >= begun]

    def worst(name: str, choose: Any) -> float | None:
        values = [row[name] for row in later if row["measured"] >= _FEWEST_MEASURED and row[name] is not None]
        return choose(values) if values else None

    return {
        "sessions": len(answers),
        "least_accepted": min(block.accepted_share for block in cut),
        "fewest_words": min(block.mean_words for block in cut),
        "most_words": max(block.mean_words for block in cut),
        "most_truncated": max(block.truncated_share for block in cut),
        "least_fluency": worst("fluency", min),
        "least_lift": worst("lift", min),
        "most_kl": worst("kl", max),
    }


def _group(answers: Sequence[Answer], measured: Measures | None, tokens: Mapping[str, int]) -> dict[str, Any]:
    block = block_of(answers)
    counted = [tokens[turn] for answer in answers if (turn := answer.turn_id or "") in tokens]
    return {
        "answers": len(answers),
        "measured": measured.turns if measured else 0,
        "accepted_share": block.accepted_share if block else None,
        "mean_words": block.mean_words if block else None,
        "truncated_share": block.truncated_share if block else None,
        "mean_tokens": fmean(counted) if counted else None,
        **{name: getattr(measured, name) if measured else None for name in _MEASURED},
    }
