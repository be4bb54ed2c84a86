"""The ``args:`` of a deployment file: one strict tree made of the owners' own config classes.

`Deployment` is what `clawrl.graph.app` receives. Everything that can be known to be wrong without loading
a model is wrong here, by path and with a remedy: `problems` names what the schema alone cannot see, and
`placement` says what the graph will ask of the cluster. Paths are resolved against ``$CLAWRL_HOME``
(default ``~/.clawrl``).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, model_validator

from clawrl.engine.config import EngineConfig
from clawrl.guards.config import GuardsConfig
from clawrl.judging.config import HintsConfig, JudgingConfig, TeacherConfig
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import AdapterShape
from clawrl.methods.base import JudgementNeed
from clawrl.methods.registry import DEFAULT, MethodConfig, build_method, method_class
from clawrl.metrics.config import MetricsConfig
from clawrl.models import ModelConfig
from clawrl.plugins import is_dotted, load
from clawrl.privacy.config import PrivacyConfig
from clawrl.serving.auth import KeyRing
from clawrl.serving.config import ServingConfig
from clawrl.sizing.architecture import check_heads
from clawrl.sizing.lookup import find_heads
from clawrl.sizing.report import EngineSeat, SizingReport, TrainerSeat, size_up
from clawrl.sizing.resources import Resources
from clawrl.strict import StrictConfig
from clawrl.training.config import TrainingConfig
from clawrl.training.schedule import smallest_batch
from clawrl.weights.config import PublishConfig
from clawrl.weights.patience import why_too_impatient

_QUESTION_TOKENS = 256
"""The least that a judge's question takes by itself; how much it is for a tokenizer is known when the judge starts."""


class PolicyArgs(StrictConfig):
    """The model that serves and learns."""

    model: ModelConfig = Field(description="the model that is served and trained")
    engine: EngineConfig = Field(EngineConfig(), description="how replicas run it")
    answer_format: Literal["auto", "hermes", "llama3", "plain"] = Field(
        "auto", description="how the model marks reasoning and tool calls; auto reads it off the chat template"
    )
    resources: Resources = Field(Resources(num_cpus=0.4), description="of one rollout replica")


class JudgeArgs(StrictConfig):
    """The frozen judge. Without a ``model`` of its own it judges with the policy's starting weights."""

    model: ModelConfig | None = Field(
        None, description="a judge of its own; null judges with the policy's starting weights"
    )
    engine: EngineConfig = Field(EngineConfig(), description="how replicas run it")
    verdict: JudgingConfig = Field(JudgingConfig(), description="how good an answer was")
    hints: HintsConfig = Field(HintsConfig(), description="how it should have been, in words")
    teacher: TeacherConfig = Field(TeacherConfig(), description="how it should have been, token by token")
    resources: Resources = Field(Resources(num_cpus=0.2), description="of one judge replica")


class TrainerArgs(StrictConfig):
    """``loss`` replaces the method's own by a function ``(LossInputs) -> LossOutput``."""

    method: MethodConfig = Field(
        default_factory=lambda: method_class(DEFAULT).Config(),
        description="the learning method, by its name, and its settings",
    )
    loss: str | None = Field(None, description="package.module:function")
    training: TrainingConfig = Field(TrainingConfig(), description="ranks, batches, optimizer, checkpoints")
    resources: Resources = Field(Resources(num_cpus=0.4), description="of one trainer rank")


@dataclass(frozen=True, slots=True)
class Placement:
    """One row of what the graph needs; ``replicas`` are Serve's defaults until the file overrides them."""

    actor: str
    replicas: int
    num_cpus: float
    num_gpus: float
    note: str = ""


def read_deployment(file: Path) -> "Deployment":
    """Our ``args`` in a deployment file that `clawrl check` accepts: those of its first application that is ours."""
    applications = yaml.safe_load(file.read_text())["applications"]
    ours = next(application for application in applications if application["import_path"].startswith("clawrl."))
    return Deployment.model_validate(ours["args"])


class Deployment(StrictConfig):
    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]{0,40}$",
        description="what the deployment is called: lower-case letters, digits and dashes",
    )
    state_dir: str = Field("", description="where the ledger, checkpoints and snapshots live; default: the name")
    serving: ServingConfig = Field(description="the HTTP side")
    policy: PolicyArgs = Field(description="the model that answers")
    judge: JudgeArgs = Field(JudgeArgs(), description="the frozen model that says how good answers were")
    trainer: TrainerArgs = Field(TrainerArgs(), description="what the policy learns with")
    publish: PublishConfig = Field(PublishConfig(), description="how trained weights reach the replicas")
    ledger: LedgerConfig = Field(LedgerConfig(), description="the record of turns")
    guards: GuardsConfig = Field(GuardsConfig(), description="what keeps bad turns out, and learning from going wrong")
    metrics: MetricsConfig = Field(MetricsConfig(), description="what is measured, and where training is logged")
    privacy: PrivacyConfig = Field(PrivacyConfig(), description="what of people's words is kept, how and for how long")

    @model_validator(mode="after")
    def _parts_agree(self) -> "Deployment":
        dtypes = self.policy.engine.dtype, self.trainer.training.dtype
        if dtypes[0] != dtypes[1]:
            raise ValueError(
                f"policy.engine.dtype is {dtypes[0]} but trainer.training.dtype is {dtypes[1]}: "
                "the trainer publishes its weights as they are, so both must be the same"
            )
        if self.trainer.training.max_sample_tokens > self.trainer.training.micro_batch_tokens:
            raise ValueError(
                "trainer.training.micro_batch_tokens must be at least max_sample_tokens, or a long turn fits no pass"
            )
        method = build_method(self.trainer.method)
        if JudgementNeed.HINTS in method.needs and self.judge.hints.source == "none":
            raise ValueError(
                f"trainer.method {method.name} learns from hints, but judge.hints.source is none; "
                "set it to quoting (small judges) or written"
            )
        group_size = getattr(self.trainer.method, "group_size", 1)
        if group_size > self.trainer.training.batch_size:
            raise ValueError(
                f"trainer.method.group_size {group_size} does not fit trainer.training.batch_size "
                f"{self.trainer.training.batch_size}; raise batch_size"
            )
        least = smallest_batch(self.trainer.training.schedule, self.trainer.training.batch_size)
        if group_size > least:
            raise ValueError(
                f"trainer.method.group_size {group_size} does not fit trainer.training.schedule.minimum {least}: a "
                f"batch could hold part of a group alone; set minimum to {group_size} or more"
            )
        return self

    @model_validator(mode="after")
    def _the_judge_has_room_for_words(self) -> "Deployment":
        verdict, hints, context = self.judge.verdict, self.judge.hints, self.judge.engine.context_length
        for field, writes, tokens in (
            ("verdict", verdict.kind == "written", verdict.max_tokens),
            ("hints", hints.source == "written", hints.max_tokens),
        ):
            if writes and tokens + _QUESTION_TOKENS > context:
                raise ValueError(
                    f"judge.{field}.max_tokens {tokens} and the question of {_QUESTION_TOKENS} tokens or more do not "
                    f"fit judge.engine.context_length {context}; lower the one or raise the other"
                )
        return self

    def without_keys(self) -> "Deployment":
        """For who serves nobody, and whose settings are shown or written down by others."""
        return self.model_copy(update={"serving": self.serving.without_keys()})

    @property
    def judge_model(self) -> ModelConfig:
        return self.judge.model or self.policy.model

    @property
    def state_path(self) -> Path:
        home = Path(os.environ.get("CLAWRL_HOME", "~/.clawrl")).expanduser()
        return (home / (self.state_dir or self.name)).absolute()

    def placement(self) -> list[Placement]:
        """What each actor reserves, by the defaults of `clawrl.graph`."""
        policy, judge, trainer = self.policy.resources, self.judge.resources, self.trainer.resources
        training = self.trainer.training
        figures = {path: f", {words}" for path, words in self.sizes().words.items()}
        least = figures.get("trainer", "").replace(", ", ", at least ")
        tp_sizes = self.policy.engine.tp_size, self.judge.engine.tp_size
        return [
            Placement("Ingress", 1, 0.0, 0.0, "HTTP"),
            Placement(
                "Rollout", 1, policy.num_cpus, policy.num_gpus, f"policy, TP{tp_sizes[0]}{figures.get('policy', '')}"
            ),
            Placement("Judge", 1, judge.num_cpus, judge.num_gpus, f"frozen, TP{tp_sizes[1]}{figures.get('judge', '')}"),
            Placement("Supervisor", 1, 0.0, 0.0, "creates the two below"),
            Placement("Coordinator", 1, 0.0, 0.0, f"state in {self.state_path}"),
            Placement(
                "Trainer",
                training.world_size,
                trainer.num_cpus,
                trainer.num_gpus,
                f"ranks, TP{training.tp_size} x FSDP{training.fsdp_size}{least}",
            ),
        ]

    @property
    def adapters(self) -> AdapterShape | None:
        """The shape of the adapters that the trainer publishes alone; ``None`` where it sends whole weights."""
        return self.adapters_for(self.policy.engine)

    def adapters_for(self, engine: EngineConfig) -> AdapterShape | None:
        """The shape of the adapters that ``engine`` is started to take as versions, if it is."""
        lora, how = self.trainer.training.lora, self.publish.adapters
        if lora is None or how == "merged" or engine.why_no_adapters(lora.targets) or (how == "auto" and engine.on_gpu):
            return None
        return AdapterShape(rank=lora.rank, alpha=lora.alpha, targets=lora.targets)

    def problems(self) -> list[str]:
        """What is wrong, or not possible, though every value has the right form."""
        found = self._engine_problems() + self._transport_problems()
        if self.trainer.training.lora is not None and self.trainer.training.tp_size > 1:
            found.append(
                "trainer.training.lora: adapters cannot be cut along tensor-parallel layers in this release; "
                "set trainer.training.tp_size to 1 and put the ranks into fsdp_size"
            )
        lora = self.trainer.training.lora
        why = lora and self.policy.engine.why_no_adapters(lora.targets)
        if why and self.publish.adapters == "alone":
            found.append(f"publish.adapters: alone, but {why}; set merged")
        training = self.trainer.training
        impatient = why_too_impatient(
            self.publish,
            collective_timeout_s=training.collective_timeout_s,
            world=training.world_size,
            least_patience_s=training.poll_s,
        )
        found += [] if impatient is None else [impatient]
        try:
            KeyRing(self.serving, os.environ)
        except ValueError as error:
            found.append(f"serving.{error}")
        found += self.metrics.problems(os.environ)
        found += self.privacy.problems(self.state_path)
        found += self._plugin_problems()
        found += self._model_problems()
        found += self.sizes().problems
        return found

    def sizes(self) -> SizingReport:
        """Whether each model fits its GPUs, as far as that can be known from here."""
        trainer = self.trainer
        return size_up(
            [
                EngineSeat(
                    path="policy",
                    model=self.policy.model,
                    resources=self.policy.resources,
                    engine=self.policy.engine,
                ),
                EngineSeat(
                    path="judge", model=self.judge_model, resources=self.judge.resources, engine=self.judge.engine
                ),
                TrainerSeat(
                    path="trainer",
                    model=self.policy.model,
                    resources=trainer.resources,
                    dtype=trainer.training.dtype,
                    world_size=trainer.training.world_size,
                    reference=build_method(trainer.method).needs_reference and trainer.training.lora is None,
                    adapters=trainer.training.lora is not None,
                    offload=trainer.training.offload_optimizer,
                ),
            ]
        )

    def _engine_problems(self) -> list[str]:
        """An engine and the GPUs of its replica have to be of one mind."""
        found = []
        for path, part in (("policy", self.policy), ("judge", self.judge)):
            engine, gpus = part.engine, part.resources.num_gpus
            try:
                engine.sglang.interpreter(os.environ)
            except ValueError as error:
                found.append(f"{path}.engine.sglang.{error}")
            if engine.kind == "transformers":
                if engine.tp_size > 1:
                    found.append(f"{path}.engine.tp_size: the transformers engine runs on one device; set 1")
            elif not engine.on_gpu:
                if gpus:
                    found.append(
                        f"{path}.resources.num_gpus: {gpus:g}, but {path}.engine.device is cpu; set 0, or device: cuda"
                    )
            elif gpus != engine.tp_size:
                found.append(
                    f"{path}.resources.num_gpus: {gpus:g}, but the engine needs one for each of "
                    f"{path}.engine.tp_size {engine.tp_size}; set {engine.tp_size}"
                )
        longest_s, held_s = self.publish.longest_s, self.serving.hold_timeout_s
        if self.policy.engine.kind == "sglang" and held_s <= longest_s:
            found.append(
                f"serving.hold_timeout_s: {held_s:g}, but SGLang may hold requests for {longest_s:g} s while weights "
                "change (publish.transfer_timeout_s and commit_timeout_s); raise the one or lower the others"
            )
        if self.judge.engine.on_gpu and (why := self._second_engine_of_the_judge()) is not None:
            found.append(f"{why}: an SGLang takes its GPUs for itself, so that the judge can run only one")
        return found

    def _second_engine_of_the_judge(self) -> str | None:
        """What makes the judge run the policy's model beside its own, and how to do without."""
        teacher, other_model = self.judge.teacher, self.judge_model != self.policy.model
        taught = JudgementNeed.TEACHER in build_method(self.trainer.method).needs and teacher.model == "policy"
        if taught and (other_model or teacher.version != 0) and teacher.version != "current":
            return "judge.teacher.model policy; set judge, or version: current"
        if other_model and self.guards.alarms.probe_every:
            return "guards.alarms.probe_every with a judge.model of its own; set it to 0, or leave judge.model out"
        return None

    def _transport_problems(self) -> list[str]:
        """NCCL speaks from GPU to GPU, so both ends must be on one."""
        if self.publish.transport != "nccl":
            return []
        found = []
        engine = self.policy.engine
        if not engine.on_gpu:
            found.append(
                "publish.transport: nccl needs policy.engine.kind sglang on device cuda; set those, or use gloo"
            )
        if not self.trainer.resources.num_gpus:
            found.append("publish.transport: nccl needs a trainer on GPUs; set trainer.resources.num_gpus, or use gloo")
        return found

    def _plugin_problems(self) -> list[str]:
        """Code of the user's that is named by a dotted path and cannot be had."""
        # The first two also have names of their own; the others are paths or nothing.
        named = {
            "judge.verdict.kind": self.judge.verdict.kind if is_dotted(self.judge.verdict.kind) else None,
            "judge.hints.source": self.judge.hints.source if is_dotted(self.judge.hints.source) else None,
            "trainer.loss": self.trainer.loss,
            **{f"guards.filters.extra[{i}]": path for i, path in enumerate(self.guards.filters.extra)},
        }
        found = []
        for field, path in named.items():
            try:
                if path is not None:
                    load(path)
            except ValueError as error:
                found.append(f"{field}: {error}")
        return found

    def _model_problems(self) -> list[str]:
        """Whether the trainer can cut the model, if its heads are known here."""
        heads = find_heads(self.policy.model)
        try:
            if heads is not None:
                check_heads(*heads, self.trainer.training.tp_size)
        except ValueError as error:
            return [f"trainer.training.tp_size: {error}"]
        return []
