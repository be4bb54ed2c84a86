"""What follows what on rank 0 of the trainer, without a cluster: everything that it calls is written down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clawrl.actors.lease_desk import EndOfTraining
from clawrl.actors.train_loop import TrainingRun
from clawrl.messages import Lease
from clawrl.training.policy_trainer import StepResult
from clawrl.training.stopwatch import StepClock


def test_new_weights_are_published_right_after_their_step_and_before_the_next_batch_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    run = TrainingRun.__new__(TrainingRun)
    steps = [Lease(lease_id=f"l{n}", run_id="run", step=n, samples=(), deadline=0.0) for n in (1, 2)]
    orders: list[Any] = [*steps, EndOfTraining()]

    class Trainer:
        step = 0

        def compute(self, samples: Any) -> None:
            said.append("compute")

        def apply(self) -> StepResult:
            said.append("apply")
            self.step += 1
            # The second batch teaches nothing.
            return StepResult(step=self.step, changed=self.step == 1, reason=None, metrics={})

    def ask(method: str, *_: Any, **__: Any) -> bool:
        said.append(method)
        return True

    def order(_: TrainingRun) -> Any:
        said.append("lease")
        return orders.pop(0)

    checkpoints = SimpleNamespace(look=lambda: None, step_taken=lambda step, state: said.append("step_taken"))
    fields: dict[str, Any] = {
        "_begun": lambda: said.append("begun"),
        "_run_id": "run",
        "_unpublished": False,
        "_lineage": "",
        "_from_rank_0": lambda make: make(),
        "_clock": StepClock(),
    }
    for name, value in {**fields, "_trainer": Trainer(), "_ask": ask, "_checkpoints": checkpoints}.items():
        setattr(run, name, value)
    monkeypatch.setattr(TrainingRun, "_report_start", lambda self: None)
    monkeypatch.setattr(TrainingRun, "_next_lease", order)
    monkeypatch.setattr(TrainingRun, "_publish", lambda self: said.append("publish"))
    monkeypatch.setattr(TrainingRun, "_end", lambda self: said.append("end"))
    run.run()
    step = ["lease", "compute", "confirm", "apply", "applied"]
    # Whoever waits for the start is told before the first batch, which may take a night to come.
    assert said == ["begun", *step, "publish", "step_taken", *step, "step_taken", "lease", "end"]
