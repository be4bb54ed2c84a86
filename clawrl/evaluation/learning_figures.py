"""The figures of one run of the learning bench, as one JSON object. Pure functions over what the run left behind.

Everything is over first answers, in the order in which their sessions began. ``buckets`` of turns that the frozen model
was shown: ``first`` and ``last`` (16 answers each) and ``v0``, ``v1``, ... by version.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, TypeVar

from clawrl.evaluation.blocks import BLOCK, block_of, blocks, by_version, sessions_until_held, spread_out
from clawrl.evaluation.demo_users import Answer
from clawrl.evaluation.learning_plan import RunPlan, plan_facts
from clawrl.evaluation.measures import Measures
from clawrl.evaluation.observations import Observations

_Item = TypeVar("_Item")
_MEASURED = ("fluency", "lift", "kl")
# The worst of a hundred small means would say more about luck than about the policy: with 0.75 accepted, one stretch of
# 16 answers in 130 falls under one half, and one of 32 in 1,700.
_STRETCH = 2 * BLOCK


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
    """The worst of what followed once the preference held, over stretches of at least 32 answers.

    Shares and lengths are over so many sessions in a row; what the frozen model says is over versions in a row of which
    it was shown so many answers. A rest belongs to the last stretch; where all are fewer, they are the one stretch.
    """
    cut = [found for part in _stretches(answers, lambda _: 1) if (found := block_of(part)) is not None]
    if not cut:
        return None
    begun = min((answer.version for answer in answers if answer.version is not None), default=0)
    later = [row for row in versions if row["version"] >= begun and row["measured"]]
    parts = _stretches(later, lambda row: int(row["measured"]))

    def worst(name: str, choose: Callable[[list[float]], float]) -> float | None:
        values = [value for part in parts if (value := _weighted(part, name)) is not None]
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


def _stretches(items: Sequence[_Item], weight: Callable[[_Item], int]) -> list[list[_Item]]:
    """Cut in order, each as short as it may be to weigh `_STRETCH`; a rest that weighs less joins the one before."""
    found: list[list[_Item]] = []
    open_: list[_Item] = []
    for item in items:
        open_.append(item)
        if sum(map(weight, open_)) >= _STRETCH:
            found.append(open_)
            open_ = []
    if open_ and found:
        found[-1].extend(open_)
    elif open_:
        found.append(open_)
    return found


def _weighted(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [(row["measured"], row[name]) for row in rows if row[name] is not None]
    weight = sum(count for count, _ in known)
    return sum(count * value for count, value in known) / weight if weight else None


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
