"""The actor graph: configuration in, a Serve application out. Names, resources and edges; no logic.

    serve run deployments/laptop.yaml

An arrow is a bound argument: Serve starts what is pointed at first and stops it last.

    Ingress ──▶ Rollout ──▶ Supervisor ─ ─ creates ─ ─▶ Coordinator, TrainerDriver
       └──────▶ Judge
"""

# No `from __future__ import annotations` here: Serve reads the class off the annotation of `app`.
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from clawrl.actors.ingress import Ingress
from clawrl.actors.judge import Judge
from clawrl.actors.rollout import Rollout
from clawrl.actors.supervisor import Supervisor
from clawrl.config import Deployment

# Requests wait inside the replica, in order and up to a limit of our own, never in Serve's router.
_UNLIMITED = 1_000_000
_STICKY = RequestRouterConfig(request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter")


class NotDeployable(ValueError):
    """The configuration has the right form but cannot run; the text names each field and a remedy."""


def app(args: Deployment) -> Application:
    if problems := args.problems():
        raise NotDeployable("; ".join(problems))
    # Settled here once: other nodes may have another home.
    args = args.model_copy(update={"state_dir": str(args.state_path)})
    supervisor = serve.deployment(Supervisor, name="Supervisor").options(
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=5,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=60,
    )
    judge = serve.deployment(Judge, name="Judge").options(
        ray_actor_options=args.judge.resources.ray_options(), max_ongoing_requests=64, health_check_timeout_s=60
    )
    rollout = serve.deployment(Rollout, name="Rollout").options(
        ray_actor_options=args.policy.resources.ray_options(),
        max_ongoing_requests=_UNLIMITED,
        health_check_period_s=2,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=20,
        request_router_config=_STICKY,
    )
    ingress = serve.deployment(Ingress, name="Ingress").options(
        ray_actor_options={"num_cpus": 0}, max_ongoing_requests=_UNLIMITED, graceful_shutdown_timeout_s=5
    )
    judged = judge.bind(args)
    return ingress.bind(args, rollout.bind(args, supervisor.bind(args)), judged)
