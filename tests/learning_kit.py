"""A run of the learning bench as its tests need it: a plan, answers, figures; no server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from clawrl.evaluation.demo_users import Answer, Record
from clawrl.evaluation.learning_figures import run_figures
from clawrl.evaluation.learning_plan import RunPlan, digest
from clawrl.evaluation.measures import Measures
from clawrl.evaluation.observations import Observations
from clawrl.evaluation.probes import probe_figures
from clawrl.evaluation.user_words import Objection

LAPTOP = Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml"
DOCUMENT = yaml.safe_load(LAPTOP.read_text())
PLAN = RunPlan(
    method="combine", preference="one_sentence", seed=1, sessions=40, time_limit_s=60.0, users=8, past=0,
    deployment=digest(DOCUMENT), measured_per_version=8,
)  # fmt: skip


def first(number: int, accepted: bool = True, version: int | None = 0, **changes: Any) -> Answer:
    facts: dict[str, Any] = {
        "kind": "talk", "user": 0, "session": f"s{number}", "turn_id": f"t{number}", "question": f"q{number}",
        "message": "q", "text": "x", "words": number, "finish_reason": "stop", "version": version,
        "objection": None if accepted else Objection.TOO_LONG, "seconds": 1.0, "first_token_s": 0.1,
        "session_number": number, "first": True,
    }  # fmt: skip
    return Answer(**(facts | changes))


def measures(fluency: float) -> Measures:
    return Measures(turns=8, tokens=9.0, fluency=fluency, lift=0.5, kl=-fluency / 10)


def a_run(plan: RunPlan = PLAN, **changes: Any) -> dict[str, Any]:
    answers = [first(number, accepted=number > 20, version=number // 10) for number in range(1, 41)]
    seen = Observations(record=Record(answers=answers), status={"step": 4}, ended="all sessions")
    measured = {"first": measures(-2.0), "last": measures(-1.0), "v0": measures(-2.0), "v3": measures(-3.0)}
    probes = {name: probe_figures([], {}) for name in ("before", "after")}
    tokens = {f"t{number}": 2 * number for number in range(1, 41)}
    return {**run_figures(plan, seen, measured, tokens, probes, None, 1), **changes}


def a_past_run(**after_held: Any) -> dict[str, Any]:
    """At the very limits, with an untaught policy of fluency -2.0 and lift 0.5."""
    limits = {
        "sessions": 32, "least_accepted": 0.5, "fewest_words": 5.0, "most_words": 9.0, "most_truncated": 0.5,
        "least_fluency": -2.5, "least_lift": 0.25, "most_kl": 2.0,
    }  # fmt: skip
    return a_run(replace(PLAN, past=3), after_held=limits | after_held)
