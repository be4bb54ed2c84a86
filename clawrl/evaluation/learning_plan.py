"""What the learning bench runs: one `RunPlan` per method, preference and seed, and the deployment that each gets.

``none`` and ``prompt`` are no methods: for comparison they serve the untrained policy, the second with the preference's
instruction as its system prompt. All others are methods of `clawrl.methods`, each with the settings that the file has
for its own method, as far as the other one has fields for them. A plan holds everything that a finished run is known
by, so that results which do not belong together can be told apart.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clawrl.evaluation.preferences import PREFERENCES, Preference

UNTRAINED = ("none", "prompt")
METHODS = (*UNTRAINED, "binary_rl", "opd", "opd_topk", "combine", "combine_topk")
SEEDS = (0, 1, 2)
# What all runs of one report have in common.
COMMON = ("deployment", "sessions", "users", "measured_per_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """``past``: go on until so many updates were applied after the preference first held; 0: end with the sessions.

    ``deployment`` is the `digest` of the file that the run's own is made from; ``measured_per_version`` answers of each
    version are shown to the frozen model.
    """

    method: str
    preference: str
    seed: int
    sessions: int
    time_limit_s: float
    users: int
    past: int
    deployment: str
    measured_per_version: int

    @property
    def name(self) -> str:
        return f"{self.method.replace(':', '.')}-{self.preference}-{self.seed}" + (
            f"-past{self.past}" if self.past else ""
        )

    @property
    def wish(self) -> Preference:
        return PREFERENCES[self.preference]

    @property
    def trains(self) -> bool:
        return self.method not in UNTRAINED

    @property
    def system(self) -> str | None:
        return self.wish.instruction if self.method == "prompt" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningOptions:
    """Everything under ``output``; for the rest see `RunPlan`."""

    deployment: Path
    output: Path
    methods: Sequence[str] = METHODS
    preferences: Sequence[str] = tuple(PREFERENCES)
    seeds: Sequence[int] = SEEDS
    sessions: int = 240
    time_limit_s: float = 900.0
    users: int = 8
    past: int = 0
    measured_per_version: int = 8

    def plans(self, document: Any) -> list[RunPlan]:
        """Seed by seed, so that an early look compares all methods. ``document`` is what the deployment file holds.

        Raises `ValueError` for an unknown preference, and where nothing is to be run.
        """
        for name in ("methods", "preferences", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"there is nothing to run: {name} names none; give at least one")
        for preference in self.preferences:
            if preference not in PREFERENCES:
                raise ValueError(f"there is no preference {preference!r}; choose among {', '.join(PREFERENCES)}")
        deployment = digest(document)
        return [
            RunPlan(
                method=method,
                preference=preference,
                seed=seed,
                sessions=self.sessions,
                time_limit_s=self.time_limit_s,
                users=self.users,
                past=self.past if method not in UNTRAINED else 0,
                deployment=deployment,
                measured_per_version=self.measured_per_version,
            )
            for seed in self.seeds
            for preference in self.preferences
            for method in self.methods
        ]


def digest(document: Any) -> str:
    """12 hex digits that stay the same while the values of the file do; comments, layout and order do not count."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def plan_facts(plan: RunPlan) -> dict[str, Any]:
    return asdict(plan)


def run_document(document: Mapping[str, Any], plan: RunPlan) -> dict[str, Any]:
    """The deployment file of one run. Raises `ValueError` for an unknown method."""
    made: dict[str, Any] = copy.deepcopy(dict(document))
    args = made["applications"][0]["args"]
    trainer, engine = args.setdefault("trainer", {}), args["policy"].setdefault("engine", {})
    if plan.trains:
        trainer["method"] = method_block(trainer.get("method") or {}, plan.method)
    trainer.setdefault("training", {})["seed"] = plan.seed
    engine["seed"] = plan.seed
    return made


def method_block(block: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of another method, with those of ``block`` that it knows too."""
    from clawrl.methods.registry import method_class

    if block.get("name") == name:
        return dict(block)
    fields = method_class(name).Config.model_fields
    return {"name": name, **{key: value for key, value in block.items() if key in fields and key != "name"}}
