"""The two places that training is logged to. Their packages are extras and loaded when the first row is there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clawrl.metrics import catalogue
from clawrl.metrics.config import MetricsConfig
from clawrl.metrics.tracking import Row, Writer


def writers(config: MetricsConfig, state: Path, name: str, settings: Mapping[str, Any]) -> list[Writer]:
    """``settings`` are shown beside the run."""
    made: list[Writer] = []
    if config.tensorboard is not None:
        made.append(TensorBoard(config.tensorboard_folder(state)))
    if config.wandb is not None:
        made.append(Wandb(config, state, name, settings))
    return made


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, row: Row) -> None:
        for name, value in row.figures.items():
            self._writer.add_scalar(name, value, row.seen.step, walltime=row.at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """One run of the deployment's; its id is that of the state folder, so that a restart goes on with it."""

    def __init__(self, config: MetricsConfig, state: Path, name: str, settings: Mapping[str, Any]) -> None:
        import wandb

        assert config.wandb is not None
        asked = config.wandb
        state.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=asked.project,
            entity=asked.entity,
            name=asked.name or name,
            id=_run_id(state),
            resume="allow" if asked.mode == "online" else None,
            mode=asked.mode,
            dir=str(state),
            config=dict(settings),
            # What this process prints is nobody's business.
            settings=wandb.Settings(console="off"),
        )
        self._teardown = wandb.teardown
        # W&B's own count only ever grows, and a step may come again.
        self._run.define_metric("*", step_metric=catalogue.STEP.field)

    def write(self, row: Row) -> None:
        self._run.log({**row.figures, "_timestamp": row.at})

    def close(self) -> None:
        self._run.finish()
        # What is left is written by W&B's own process, which is waited for here.
        self._teardown()


def _run_id(state: Path) -> str:
    file = state / "wandb-run-id"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:12])
    return file.read_text().strip()
