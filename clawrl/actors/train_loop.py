"""What runs on every rank of the trainer: lease, compute, fence, step, publish, checkpoint, again.

Rank 0 alone talks to the coordinator and tells the others what to do at least every few seconds, so that
nobody sits in a collective until it times out. The order around a step is what makes it exactly once: the
lease names the step before it is taken, the fence is passed right before the optimizer moves, and turns
are final only with a checkpoint that contains the step. On start the run reports the step that it
restored, and publishes if what is being served is not what it holds.

A publish that fails costs nothing but freshness: it is tried again before the next step.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from clawrl.actors.calls import Coordinator, CoordinatorAway
from clawrl.actors.lease_desk import EndOfTraining, Order, Rewind
from clawrl.config import Deployment
from clawrl.messages import Lease, PolicyVersion, WeightManifest
from clawrl.methods.custom_loss import with_loss
from clawrl.methods.registry import build_method
from clawrl.models import resolve
from clawrl.training.checkpoint import load_checkpoint, save_checkpoint
from clawrl.training.model import full_parameters, load_model
from clawrl.training.policy_trainer import PolicyTrainer, StepResult
from clawrl.weights.broadcast import Sender, TransferError
from clawrl.weights.manifest import build_manifest, pack_bucket
from clawrl.weights.snapshot import prune, read_snapshot, write_snapshot
from clawrl.weights.sources import Rendezvous

log = logging.getLogger(__name__)
T = TypeVar("T")
# A call that must not be lost waits this long for a coordinator that is being restarted.
_PATIENCE_S = 300.0
_LONGEST_REST_S = 60.0


def train_loop(settings: dict[str, Any]) -> None:
    """The function that Ray Train runs on each rank."""
    TrainingRun(Deployment.model_validate(settings["deployment"])).run()


class TrainingRun:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._config = deployment.trainer.training
        self._coordinator = Coordinator(deployment.name)
        self._rank = ray.train.get_context().get_world_rank()
        self._world = ray.train.get_context().get_world_size()
        self._run_id = self._from_rank_0(lambda: uuid.uuid4().hex)
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(self._config.seed)
        folder = resolve(deployment.policy.model)
        method = with_loss(build_method(deployment.trainer.method), deployment.trainer.loss)
        self._model = self._load(folder)
        # With adapters the model without them is the reference.
        reference = self._load(folder) if method.needs_reference and self._config.lora is None else None
        self._trainer = PolicyTrainer(self._model, reference, method, self._config)
        # The rollback that these weights have followed; part of the checkpoint.
        self._rewound_to = 0
        self._restore()
        self._checkpointed_step = self._trainer.step
        self._unpublished = False
        self._failed_publishes = 0

    def _load(self, folder: Path) -> PreTrainedModel:
        config = self._config
        return load_model(
            folder,
            dtype=getattr(torch, config.dtype),
            tp_size=config.tp_size,
            fsdp_size=config.fsdp_size,
            device=ray.train.torch.get_device(),
        )

    def run(self) -> None:
        self._report_start()
        while True:
            if self._unpublished:
                self._publish()
            order = self._from_rank_0(self._next_lease)
            if isinstance(order, EndOfTraining):
                return self._checkpoint()
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
        stats = {**result.metrics, "train_s": time.monotonic() - began, "changed": result.changed}
        if not self._from_rank_0(lambda: self._ask("applied", lease.lease_id, self._run_id, stats)):
            raise RuntimeError(f"step {lease.step}: another training run has taken over")
        self._log_step(result)
        if result.changed:
            self._publish()
        if self._trainer.step - self._checkpointed_step >= self._config.checkpoint_every:
            self._checkpoint()

    def _log_step(self, result: StepResult) -> None:
        shown = {name: round(value, 5) for name, value in result.metrics.items()}
        log.info("step %d changed=%s %s %s", result.step, result.changed, result.reason or "", shown)

    def _rewind(self, version: PolicyVersion) -> None:
        """The guard rolled serving back to these weights; training goes back to them, too, and checkpoints at once."""
        _, tensors = read_snapshot(Path(version.snapshot))
        self._trainer.rewind(tensors)
        self._rewound_to = version.version
        current = self._from_rank_0(lambda: self._ask("current_version"))
        self._unpublished = current.version != version.version
        self._checkpoint(again=True)
        self._from_rank_0(lambda: self._ask("rewound", self._run_id, version.version))
        log.warning("training goes on from the weights of version %d", version.version)

    # -- publishing ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Gather on all ranks, send from rank 0; a failure leaves the old version serving."""
        tensors = dict(full_parameters(self._model))
        self._unpublished = not self._from_rank_0(lambda: self._send(tensors))

    def _send(self, tensors: dict[str, torch.Tensor]) -> bool:
        publish_id = None
        try:
            version: int = self._ask("next_version")
            manifest, folder = self._snapshot(version, tensors)
            sender = self._open_sender()
            try:
                meeting = self._ask(
                    "begin_publish", self._run_id, manifest, self._trainer.step, str(folder), *sender.address
                )
                publish_id = meeting.name
                if meeting.world > 1:
                    _transfer(sender, meeting, manifest, tensors)
                self._ask("finish_publish", meeting.name, patience_s=_PATIENCE_S + self._deployment.publish.longest_s)
            finally:
                sender.close()
        except Exception as error:
            # Of any kind: what was learned is in the trainer, and serving goes on with the old version.
            log.warning("a publish of step %d failed and will be tried again: %r", self._trainer.step, error)
            if publish_id is not None:
                with contextlib.suppress(Exception):
                    self._coordinator.ask_now("abort_publish", publish_id, repr(error)[:500], timeout_s=5.0)
            # Engines that load in place hold their users for every attempt.
            self._failed_publishes += 1
            time.sleep(min(self._config.poll_s * 2 ** (self._failed_publishes - 1), _LONGEST_REST_S))
            return False
        self._failed_publishes = 0
        return True

    def _snapshot(self, version: int, tensors: dict[str, torch.Tensor]) -> tuple[WeightManifest, Path]:
        """Old snapshots go first, so that failing publishes do not fill the disk; the current one stays."""
        settings = self._deployment.publish
        snapshots = self._deployment.state_path / "snapshots"
        prune(snapshots, settings.keep_snapshots, spare=[Path(folder) for folder in self._ask("snapshots_in_use")])
        manifest = build_manifest(version, tensors, bucket_bytes=int(settings.bucket_mb * 2**20))
        return manifest, write_snapshot(snapshots, manifest, tensors)

    def _open_sender(self) -> Sender:
        settings = self._deployment.publish
        return Sender(ray.util.get_node_ip_address(), settings.transport, settings.transfer_timeout_s)

    # -- start and checkpoints ----------------------------------------------------------------------

    def _restore(self) -> None:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                state = load_checkpoint(Path(folder))
            if state is None:
                raise RuntimeError(f"the checkpoint {checkpoint.path} holds no trainer state")
            self._trainer.load_state_dict(state)
            self._rewound_to = state.get("rewound_to", 0)

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
        tensors = dict(full_parameters(self._model))

        def register() -> None:
            manifest, folder = self._snapshot(0, tensors)
            start = PolicyVersion(
                version=0, step=0, snapshot=str(folder), digest=manifest.digest, published_at=time.time()
            )
            self._ask("start_version", self._run_id, start)

        self._from_rank_0(register)

    def _checkpoint(self, *, again: bool = False) -> None:
        step = self._trainer.step
        if step == self._checkpointed_step and not again:
            return
        with tempfile.TemporaryDirectory(dir=_scratch(self._deployment, self._rank)) as folder:
            save_checkpoint(Path(folder), self._trainer.state_dict() | {"rewound_to": self._rewound_to})
            ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        self._checkpointed_step = step
        self._from_rank_0(lambda: self._ask("checkpointed", self._run_id, step))

    # -- talking ------------------------------------------------------------------------------------

    def _ask(self, method: str, *arguments: Any, patience_s: float = _PATIENCE_S) -> Any:
        return self._coordinator.ask_now(method, *arguments, timeout_s=patience_s)

    def _from_rank_0(self, make: Callable[[], T]) -> T:
        """``make`` on rank 0 only; every rank gets its value."""
        if self._world == 1:
            return make()
        box: list[Any] = [make() if self._rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        value: T = box[0]
        return value


def _transfer(
    sender: Sender, meeting: Rendezvous, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor]
) -> None:
    """One replica that died breaks this for the sender; those that have every byte will say so."""
    try:
        sender.connect(meeting.name, meeting.world)
        for bucket in range(len(manifest.buckets)):
            sender.send(pack_bucket(manifest, bucket, tensors))
    except TransferError as error:
        log.warning("sending version %d broke off: %s", manifest.version, error)
        sender.close()


def _scratch(deployment: Deployment, rank: int) -> Path:
    """Beside the checkpoints, since /tmp may be too small for one. What a killed run left there goes."""
    folder = deployment.state_path / "scratch" / f"rank{rank}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
