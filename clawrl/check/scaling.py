"""What a file's autoscaling could do to the trainer and to answers that are under way: notes, since a cluster may be
large enough, which no file says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clawrl.config import Deployment
    from clawrl.sizing.resources import Resources

_GRACE_S = 20


def scaling_notes(path: str, overrides: Sequence[Mapping[str, Any]], deployment: Deployment) -> Iterator[str]:
    """``overrides`` are the ``deployments:`` of an application at ``path``."""
    policy, judge = deployment.policy, deployment.judge
    parts = {
        "Rollout": ("policy", policy.resources, policy.engine),
        "Judge": ("judge", judge.resources, judge.engine),
    }
    for index, override in enumerate(overrides):
        if override["name"] not in parts or not _grows(override):
            continue
        name, (argument, resources, engine) = override["name"], parts[override["name"]]
        here = f"{path}.deployments[{index}]"
        if shared := _shared(override, resources, deployment.trainer.resources):
            yield (
                f"{here}: replicas of {name} may take the {' and '.join(shared)} that the trainer needs when it starts "
                f"again; keep them on other nodes with {argument}.resources.custom and trainer.resources.custom, as "
                "deployments/cluster/autoscaled.yaml does"
            )
        if name == "Rollout" and "graceful_shutdown_timeout_s" not in override:
            yield (
                f"{here}.graceful_shutdown_timeout_s: not set, so that a replica which is taken away has {_GRACE_S} s "
                "to end its answers; set it above the longest answer"
            )
        target = (override.get("autoscaling_config") or {}).get("target_ongoing_requests")
        running = engine.max_running_requests
        if target is not None and target > running:
            yield (
                f"{here}.autoscaling_config.target_ongoing_requests: {target} a replica, but {argument}.engine."
                f"max_running_requests is {running}: requests would wait before replicas come; set at most {running}"
            )


def _grows(override: Mapping[str, Any]) -> bool:
    if override.get("num_replicas") == "auto":
        return True
    scaling = override.get("autoscaling_config") or {}
    least, most = scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)
    return bool(most > least)


def _shared(override: Mapping[str, Any], replica: Resources, trainer: Resources) -> list[str]:
    """What both take from the same nodes. They are apart if each asks for something that the other does not."""
    options = override.get("ray_actor_options")
    asked = replica.ray_options() if options is None else options
    names = (asked.get("resources") or {}).keys()
    if names - trainer.custom.keys() and trainer.custom.keys() - names:
        return []
    both = {
        "CPUs": min(asked.get("num_cpus") or 0, trainer.num_cpus),
        "GPUs": min(asked.get("num_gpus") or 0, trainer.num_gpus),
    }
    return [kind for kind, least in both.items() if least > 0]
