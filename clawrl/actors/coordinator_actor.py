"""The coordinator as Ray runs it: it finds its judge by name. Its own module, so that its process loads no torch."""

from __future__ import annotations

from ray import serve

from clawrl.actors.coordinator import Coordinator
from clawrl.config import Deployment
from clawrl.messages import Judgement, JudgeRequest
from clawrl.methods.registry import build_method


class CoordinatorActor(Coordinator):
    def __init__(self, deployment: Deployment, app_name: str) -> None:
        judge = serve.get_deployment_handle("Judge", app_name=app_name)

        async def ask_judge(request: JudgeRequest) -> Judgement:
            judgement: Judgement = await judge.judge.remote(request)
            return judgement

        super().__init__(deployment, build_method(deployment.trainer.method), ask_judge)
