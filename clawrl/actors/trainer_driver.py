"""The driver of training: a detached actor whose thread runs ``TorchTrainer.fit()``.

Ray Train owns the ranks and restarts them when one dies or hangs; they find the last checkpoint themselves. If ``fit``
itself gives up or this actor is restarted, it is called again. Ranks that do not get as far as to report within
`start_timeout_s` lose their seats, so that others are started. Serving never depends on it.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING

from clawrl.actors.calls import Coordinator
from clawrl.actors.seats import SeatWatch
from clawrl.config import Deployment
from clawrl.metrics.tracking import Progress, Seen, Tracker
from clawrl.metrics.writers import writers
from clawrl.privacy.logs import redact_logs_by

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

log = logging.getLogger(__name__)
_RETRY_S = 10.0
_SHOWN_IN_DASHBOARD = "RAY_TRAIN_ENABLE_STATE_TRACKING"
_HANGS_AFTER = "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"
_SEATS_S = 5.0
_REPEAT_S = 5.0
_LAST_ROWS_S = 5.0


class TrainerDriver:
    def __init__(self, deployment: Deployment) -> None:
        redact_logs_by(deployment.privacy.redaction)
        self._deployment = deployment
        self._coordinator = Coordinator(deployment.name)
        self._stopping = threading.Event()
        training = deployment.trainer.training
        self._seats = SeatWatch(training.world_size, self._seat(), training.start_timeout_s)
        self._said: str | None = None
        self._thread = threading.Thread(target=self._run, name="fit", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_seats, name="seats", daemon=True).start()
        threading.Thread(target=self._repeat, name="repeat", daemon=True).start()
        self._tracker = self._make_tracker()

    def ping(self) -> int:
        """The process id. Raises when the training thread is gone though nobody asked it to stop."""
        if not self._thread.is_alive() and not self._stopping.is_set():
            raise RuntimeError("the training thread ended")
        return os.getpid()

    def settings(self) -> str:
        """What this was made for; nothing that anybody wants once it is being stopped."""
        return "" if self._stopping.is_set() else self._deployment.model_dump_json()

    def begun(self, seats: str) -> None:
        """The ranks on these seats, a placement group's id in hexadecimal, have reported what they restored."""
        self._seats.note_begun(bytes.fromhex(seats))

    def stop(self, timeout_s: float) -> bool:
        """Let the run checkpoint and end; true if it did in time."""
        self._stopping.set()
        self._coordinator.ask_now("end_training", timeout_s=5.0)
        self._thread.join(timeout_s)
        if self._tracker is not None:
            # The last steps are in the ledger by now.
            self._tracker.stop(_LAST_ROWS_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._said = None
            try:
                self._trainer().fit()
            except Exception as error:
                log.exception("training ended with an error; it is started again in %s s", _RETRY_S)
                self._tell(f"failed: {type(error).__name__}: {error}"[:500])
            self._stopping.wait(_RETRY_S)
        self._tell("stopped")

    def _watch_seats(self) -> None:
        """Beside `fit`, which may be waiting for just these seats, or for a rank that never gets up."""
        while not self._stopping.wait(_SEATS_S):
            try:
                orphaned, late = self._seats.free(time.monotonic())
            except Exception:
                log.exception("whether seats of the trainer are held by nobody is not known")
                continue
            if orphaned:
                log.warning("the seats of %d failed starts of the trainer were held by nobody and are free", orphaned)
            if late:
                limit_s = self._deployment.trainer.training.start_timeout_s
                log.error("the trainer's ranks had not begun %g s after their start; others are started", limit_s)

    def _repeat(self) -> None:
        """A coordinator that was restarted has forgotten what it was told; of a run that goes on it hears at once."""
        while not self._stopping.wait(_REPEAT_S):
            if (said := self._said) is not None:
                self._tell(said)

    def _make_tracker(self) -> Tracker | None:
        """Logs training to TensorBoard and W&B, if so configured, from here: nothing that serves waits for it."""
        deployment, state = self._deployment, self._deployment.state_path
        if not deployment.metrics.tracks:
            return None
        settings = {"trainer": deployment.trainer.model_dump(), "policy": deployment.policy.model.model_dump()}

        def ask(seen: Seen | None) -> Progress:
            found: Progress = self._coordinator.ask_now("progress", seen, timeout_s=30.0)
            return found

        tracker = Tracker(
            ask,
            lambda: writers(deployment.metrics, state, deployment.name, settings),
            state / "tracked.json",
        )
        tracker.start()
        return tracker

    def _seat(self) -> dict[str, float]:
        """What one rank reserves."""
        asked = self._deployment.trainer.resources
        seat = {"CPU": asked.num_cpus, **asked.custom}
        return seat | {"GPU": asked.num_gpus} if asked.num_gpus else seat

    def _trainer(self) -> TorchTrainer:
        # Here and not above: the supervisor imports this module, and torch is slow to load where it is not used.
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        from clawrl.actors.train_loop import train_loop

        training = self._deployment.trainer.training
        asked = self._deployment.trainer.resources
        # One bound for a rank that others wait for and for one that only Ray Train asks after; told to its controller.
        # What Ray's dashboard shows on its Train page is gathered where `fit` is called.
        os.environ.setdefault(_SHOWN_IN_DASHBOARD, "1")
        os.environ.setdefault(_HANGS_AFTER, str(training.collective_timeout_s))
        gpus = asked.num_gpus
        return TorchTrainer(
            train_loop,
            # Ray Train keeps it with the run, and its dashboard shows it.
            train_loop_config={"deployment": self._deployment.without_keys().model_dump()},
            torch_config=TorchConfig(
                backend="nccl" if gpus else "gloo", timeout_s=math.ceil(training.collective_timeout_s)
            ),
            scaling_config=ScalingConfig(
                num_workers=training.world_size,
                use_gpu=bool(gpus),
                resources_per_worker=self._seat(),
                accelerator_type=asked.accelerator_type,
            ),
            run_config=RunConfig(
                name="training",
                storage_path=str(self._deployment.state_path / "checkpoints"),
                failure_config=FailureConfig(max_failures=training.max_failures),
            ),
        )

    def _tell(self, state: str) -> None:
        self._said = state
        try:
            self._coordinator.ask_now("trainer_state", state, timeout_s=5.0)
        except Exception as error:
            log.warning("the coordinator was not told that training %s: %r", state, error)
