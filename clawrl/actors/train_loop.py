"""What runs on every rank of the trainer: lease, compute, fence, step, publish, checkpoint, again.

Rank 0 alone talks to the coordinator and tells the others what to do at least every few seconds, so that
nobody sits in a collective until it times out. The order around a step is what makes it exactly once: the
lease names the step before it is taken, the fence is passed right before the optimizer moves, and turns
are final only with a checkpoint that contains the step. Checkpoints are written while the next steps are
taken. On start the run reports the step that it restored, and publishes if what is being served is not what it
holds.

A rank that sleeps or hangs holds up the others for `collective_timeout_s` at most: then theirs raise, and Ray Train
restarts all of them from the last checkpoint. One that wakes up before that is waited for. The start has a limit of its
own, which the driver minds: see `clawrl.actors.seats`.

A publish that fails costs nothing but freshness: it is tried again before the next step.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import ray
import ray.train
import ray.train.torch
import torch
from transformers import PreTrainedModel

from clawrl.actors.calls import Coordinator, CoordinatorAway, tell_begun
from clawrl.actors.lease_desk import EndOfTraining, Order, Rewind
from clawrl.actors.publisher import Publisher
from clawrl.actors.shared_folder import check_state_folder
from clawrl.config import Deployment
from clawrl.messages import Lease, PolicyVersion
from clawrl.methods.custom_loss import with_loss
from clawrl.methods.registry import build_method
from clawrl.models import resolve
from clawrl.privacy.logs import redact_logs_by
from clawrl.training.checkpointing import Checkpointing
from clawrl.training.lora import shape_of
from clawrl.training.model import load_model
from clawrl.training.outgoing import Outgoing, read_to_rewind
from clawrl.training.policy_trainer import PolicyTrainer, StepResult
from clawrl.training.ranks import Ranks, limit_collectives
from clawrl.training.stopwatch import StepClock
from clawrl.training.weights_lineage import UNTRAINED, follow
from clawrl.weights.patience import patience_of_one_call_s, patience_s
from clawrl.weights.snapshot import put_back

log = logging.getLogger(__name__)


class Asking(Protocol):
    """How the coordinator is reached: `clawrl.actors.calls.Coordinator`."""

    def ask_now(self, method: str, *arguments: Any, timeout_s: float) -> Any: ...


def train_loop(settings: dict[str, Any]) -> None:
    """The function that Ray Train runs on each rank."""
    deployment = Deployment.model_validate(settings["deployment"])
    redact_logs_by(deployment.privacy.redaction)
    coordinator = Coordinator(deployment.name)
    check_state_folder(deployment, coordinator)
    context, earlier = ray.train.get_context(), ray.train.get_checkpoint()
    TrainingRun(
        deployment,
        coordinator,
        Ranks(context.get_world_rank(), context.get_world_size()),
        ray.train.torch.get_device(),
        begun=lambda: tell_begun(deployment.name),
        earlier=None if earlier is None else Path(earlier.path),
    ).run()


class TrainingRun:
    """``begun`` is called on rank 0 when the start is over. ``earlier`` is the checkpoint that Ray Train kept, as
    releases before this one had it do.
    """

    def __init__(
        self,
        deployment: Deployment,
        coordinator: Asking,
        ranks: Ranks,
        device: torch.device,
        *,
        begun: Callable[[], None] = lambda: None,
        earlier: Path | None = None,
    ) -> None:
        self._deployment = deployment
        self._config = deployment.trainer.training
        self._coordinator = coordinator
        self._device = device
        self._begun = begun
        self._from_rank_0 = ranks.from_rank_0
        # While rank 0 waits for the coordinator, the other ranks wait for rank 0.
        bound: Any = {"collective_timeout_s": self._config.collective_timeout_s, "world": ranks.world}
        self._patience_s = patience_of_one_call_s(**bound)
        self._publish_patience_s = patience_s(deployment.publish, **bound, least_s=self._config.poll_s)
        self._run_id = self._from_rank_0(lambda: uuid.uuid4().hex)
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(self._config.seed)
        folder = resolve(deployment.policy.model)
        method = with_loss(build_method(deployment.trainer.method), deployment.trainer.loss)
        self._model = self._load(folder)
        # With adapters the model without them is the reference.
        reference = self._load(folder) if method.needs_reference and self._config.lora is None else None
        limit_collectives(self._config.collective_timeout_s)
        self._trainer = PolicyTrainer(self._model, reference, method, self._config)
        self._shape = None if self._config.lora is None else shape_of(self._config.lora)
        self._outgoing = Outgoing(
            self._model,
            deployment.state_path / "snapshots",
            alone=deployment.adapters,
            shape=self._shape,
            bucket_bytes=int(deployment.publish.bucket_mb * 2**20),
        )
        # The rollback that these weights have followed; part of the checkpoint.
        self._rewound_to = 0
        self._lineage = UNTRAINED
        self._checkpoints = Checkpointing(
            deployment.state_path / "checkpoints",
            ranks,
            self._ask,
            self._run_id,
            every=self._config.checkpoint_every,
            keep=self._config.keep_checkpoints,
        )
        if (state := self._checkpoints.restore(earlier)) is not None:
            self._trainer.load_state_dict(state)
            self._rewound_to = state.get("rewound_to", 0)
            self._lineage = state.get("lineage", UNTRAINED)
        self._publisher = Publisher(
            deployment, self._ask_in_a_publish, self._run_id, longest_rest_s=self._publish_patience_s
        )
        self._unpublished = False
        self._clock = StepClock()

    def _load(self, folder: Path) -> PreTrainedModel:
        config = self._config
        return load_model(
            folder,
            dtype=getattr(torch, config.dtype),
            tp_size=config.tp_size,
            fsdp_size=config.fsdp_size,
            device=self._device,
        )

    def run(self) -> None:
        self._report_start()
        self._from_rank_0(self._begun)
        while True:
            self._checkpoints.look()
            if self._unpublished:
                self._publish()
            with self._clock.phase("wait"):
                order = self._from_rank_0(self._next_lease)
            if isinstance(order, EndOfTraining):
                return self._end()
            if isinstance(order, Rewind):
                self._rewind(order.version)
            elif order is not None:
                self._take_step(order)

    # -- one step -----------------------------------------------------------------------------------

    def _next_lease(self) -> Order:
        poll_s = self._config.poll_s
        try:
            lease: Order = self._coordinator.ask_now(
                "lease", self._run_id, self._trainer.step + 1, poll_s, timeout_s=2 * poll_s
            )
        except CoordinatorAway as away:
            log.warning("no lease: %s", away)
            return None
        return lease

    def _take_step(self, lease: Lease) -> None:
        began = time.monotonic()
        self._trainer.compute(lease.samples)
        if not self._from_rank_0(lambda: self._ask("confirm", lease.lease_id, self._run_id)):
            log.warning("step %d: the lease was void before the step was taken", lease.step)
            return self._trainer.discard()
        result = self._trainer.apply()
        self._lineage = follow(self._lineage, lease.step, (sample.turn_id for sample in lease.samples))
        times = self._clock.step_ended(result.seconds)
        stats = {**result.metrics, **times, "train_s": time.monotonic() - began, "changed": result.changed}
        if not self._from_rank_0(lambda: self._ask("applied", lease.lease_id, self._run_id, stats)):
            raise RuntimeError(f"step {lease.step}: another training run has taken over")
        self._log_step(result)
        if result.changed:
            self._publish()
        self._checkpoints.step_taken(self._trainer.step, self._state)

    def _log_step(self, result: StepResult) -> None:
        shown = {name: round(value, 5) for name, value in result.metrics.items()}
        log.info("step %d changed=%s %s %s", result.step, result.changed, result.reason or "", shown)

    def _rewind(self, version: PolicyVersion) -> None:
        """Serving was rolled back to these weights; training goes back to them, too, and checkpoints at once."""
        self._from_rank_0(lambda: put_back(Path(version.snapshot).parent))
        try:
            self._trainer.rewind(read_to_rewind(Path(version.snapshot), self._shape))
        except ValueError as error:
            refusal = f"failed: version {version.version}: {error}"[:1000]
            self._from_rank_0(lambda: self._ask("trainer_state", refusal))
            raise
        self._outgoing.rewound()
        self._rewound_to = version.version
        current = self._from_rank_0(lambda: self._ask("current_version"))
        self._unpublished = current.version != version.version
        self._checkpoints.save_now(self._trainer.step, self._state)
        self._from_rank_0(lambda: self._ask("rewound", self._run_id, version.version))
        log.warning("training goes on from the weights of version %d", version.version)

    # -- publishing ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Gather on all ranks, send from rank 0; a failure leaves the old version serving."""
        with self._clock.phase("update_weights"):
            contents = self._outgoing.version()
            step, needed = self._trainer.step, self._outgoing.needed
            self._unpublished = not self._from_rank_0(lambda: self._publisher.send(contents, step, needed))
            if not self._unpublished:
                self._outgoing.settle()

    # -- start and end ------------------------------------------------------------------------------

    def _report_start(self) -> None:
        """Tell which step was restored; serve what this run holds if something else is being served."""

        def report() -> PolicyVersion | None:
            _, current = self._ask("restored", self._run_id, self._trainer.step, self._rewound_to)
            return cast(PolicyVersion | None, current)

        current = self._from_rank_0(report)
        if current is None and self._trainer.step == 0:
            return self._register_start()
        # After a rollback the two differ on purpose: what this run holds is that version, or it is about to be told so.
        rolled_back = current is not None and "rolled_back_to" in current.stats
        self._unpublished = not rolled_back and (current.step if current else 0) != self._trainer.step

    def _register_start(self) -> None:
        """The starting weights become version 0, so that there is always something to go back to."""
        contents = self._outgoing.whole()
        self._from_rank_0(lambda: self._publisher.register_start(contents))

    def _end(self) -> None:
        """What was trained since the last checkpoint is in another one when the run is over."""
        self._checkpoints.finish()
        if self._trainer.step != self._checkpoints.saved_step:
            self._checkpoints.save_now(self._trainer.step, self._state)

    def _state(self) -> dict[str, Any]:
        return self._trainer.state_dict() | {"rewound_to": self._rewound_to, "lineage": self._lineage}

    # -- talking ------------------------------------------------------------------------------------

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._coordinator.ask_now(method, *arguments, timeout_s=self._patience_s)

    def _ask_in_a_publish(self, method: str, *arguments: Any, more_s: float = 0.0) -> Any:
        return self._coordinator.ask_now(method, *arguments, timeout_s=self._publish_patience_s + more_s)
