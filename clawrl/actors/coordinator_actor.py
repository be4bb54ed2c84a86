"""The coordinator as Ray runs it: it finds judge and replicas by name. Its own module, so that it loads no torch."""

from __future__ import annotations

from typing import cast

from ray import serve

from clawrl.actors.coordinator import Coordinator
from clawrl.actors.judging_desk import JudgeCalls
from clawrl.actors.ray_metrics import sink_of
from clawrl.config import Deployment
from clawrl.judging.trouble import Trouble, answered
from clawrl.messages import (
    Judgement,
    JudgeRequest,
    ModelVitals,
    TeacherRequest,
    TeacherTargets,
    VitalsRequest,
)
from clawrl.methods.registry import build_method
from clawrl.privacy.logs import redact_logs


class CoordinatorActor(Coordinator):
    def __init__(self, deployment: Deployment, app_name: str) -> None:
        judge = serve.get_deployment_handle("Judge", app_name=app_name)
        # The policy that serves teaches itself, if so configured; otherwise the teacher is frozen.
        live = deployment.judge.teacher.version == "current"
        teacher = serve.get_deployment_handle("Rollout", app_name=app_name) if live else judge

        async def ask_judge(request: JudgeRequest) -> Judgement:
            return answered(cast(Judgement | Trouble, await judge.judge.remote(request)))

        async def ask_teacher(request: TeacherRequest) -> TeacherTargets:
            return answered(cast(TeacherTargets | Trouble, await teacher.teach.remote(request)))

        async def ask_vitals(request: VitalsRequest) -> ModelVitals:
            return cast(ModelVitals, await judge.vitals.remote(request))

        calls = JudgeCalls(judge=ask_judge, teach=ask_teacher, vitals=ask_vitals)
        super().__init__(deployment, build_method(deployment.trainer.method), calls, sink_of(deployment.metrics))
        redact_logs(self._redactor)
