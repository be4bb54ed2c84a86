"""The real ingress before a replica that answers at once: what is left is what the ingress and Serve cost.

`app` is what `bench.ingress` has ``serve run`` start. Turns are announced to a real coordinator and, since nothing
was sampled, not recorded.
"""

# No `from __future__ import annotations` here: Serve reads the class off the annotation of `app`.
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from clawrl.actors.calls import NAMESPACE, coordinator_name
from clawrl.actors.coordinator_actor import CoordinatorActor
from clawrl.actors.generation import GenerationTask
from clawrl.actors.ingress import Ingress
from clawrl.actors.ray_metrics import sink_of
from clawrl.config import Deployment
from clawrl.messages import FinishReason, Message, VersionSpan
from clawrl.metrics.answers import AnswerMeter
from clawrl.serving.pieces import FinishPiece, Piece, TextPiece, Usage

WORDS = tuple(f"word{number} " for number in range(16))
_MANY = 1_000_000


class InstantRollout:
    def __init__(self, deployment: Deployment) -> None:
        app_name = serve.get_replica_context().app_name
        self._sink = sink_of(deployment.metrics)
        # Serve stops this one last, and the coordinator goes with the process that made it.
        self._coordinator = (
            ray.remote(CoordinatorActor)
            .options(name=coordinator_name(deployment.name), namespace=NAMESPACE, num_cpus=0, max_concurrency=1000)
            .remote(deployment, app_name)
        )

    async def ready(self) -> bool:
        return True

    async def count_tokens(self, messages: Sequence[Message], inputs: Any) -> int:
        return len(messages)

    async def generate(self, task: GenerationTask) -> AsyncGenerator[Piece, None]:
        # Measured as a replica measures.
        meter = AnswerMeter(self._sink)
        for word in WORDS:
            meter.took(1)
            yield TextPiece(text=word, version=0)
        meter.ended(8)
        yield FinishPiece(
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(start=0, end=len(WORDS), version=0),),
            version=0,
            usage=Usage(prompt_tokens=8, completion_tokens=len(WORDS)),
            message=Message(role="assistant", content="".join(WORDS)),
        )


class NoJudge:
    def __init__(self, rollout: DeploymentHandle) -> None:
        self._rollout = rollout

    async def ready(self) -> bool:
        return True


def app(args: Deployment) -> Application:
    args = args.model_copy(update={"state_dir": str(args.state_path)})
    nothing = {"num_cpus": 0}
    rollout = serve.deployment(InstantRollout, name="Rollout").options(
        ray_actor_options=nothing, max_ongoing_requests=_MANY
    )
    judge = serve.deployment(NoJudge, name="Judge").options(ray_actor_options=nothing)
    ingress = serve.deployment(Ingress, name="Ingress").options(ray_actor_options=nothing, max_ongoing_requests=_MANY)
    answers = rollout.bind(args)
    return ingress.bind(args, answers, judge.bind(answers))
