"""Training as it is logged elsewhere: every step once, whatever is restarted, in files that the tools read."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clawrl.config import Deployment
from clawrl.metrics.config import MetricsConfig, WandbConfig
from clawrl.metrics.tracking import Progress, Row, Seen, Tracker, progress
from clawrl.metrics.writers import writers
from tests.live import tiny_deployment
from tests.test_metrics_following import PUBLISHED, step, version


class _Ledger:
    def __init__(self, steps: Sequence[Any], versions: Sequence[Any] = ()) -> None:
        self._steps, self._versions = steps, versions

    def steps(self, limit: int) -> Sequence[Any]:
        return self._steps[:limit]

    def versions(self, limit: int) -> Sequence[Any]:
        return self._versions[:limit]

    def counts(self) -> Any:
        from clawrl.ledger.views import Counts
        from clawrl.messages import DropReason, TurnState

        return Counts(recorded=9, by_state={TurnState.QUEUED: 4}, dropped={DropReason.SIDE: 2})


def rows(ledger: _Ledger, seen: Seen | None = None) -> Sequence[Row]:
    return progress(ledger, seen).rows  # type: ignore[arg-type]


def test_a_step_is_logged_under_the_names_of_the_field() -> None:
    stats = {"loss": 0.5, "entropy": 1.25, "clip_fraction": 0.1, "train_rollout_logprob_abs_diff": 0.01, "wait_s": 2.0}
    (row,) = rows(_Ledger([step(3, changed=True, step_s=5.0, **stats)]))
    assert row.seen == Seen(run_id="run", step=3) and row.at == 3.0
    assert row.figures["train/step"] == 3 and row.figures["train/loss"] == 0.5
    assert row.figures["train/entropy_loss"] == 1.25 and row.figures["train/pg_clipfrac"] == 0.1
    assert row.figures["train/train_rollout_logprob_abs_diff"] == 0.01
    assert row.figures["perf/train_wait_time"] == 2.0 and row.figures["perf/step_time"] == 5.0
    assert row.figures["rollout/queue_depth"] == 4 and row.figures["rollout/turns_dropped/side"] == 2
    assert "train/kl_loss" not in row.figures, "what was not measured is not 0"


def test_steps_come_oldest_first_from_the_one_after_the_last_that_was_seen() -> None:
    from clawrl.ledger.views import StepState

    newest_first = [
        step(4),
        step(3),
        step(3, run="old", state=StepState.UNDONE),
        step(2, run="old"),
        step(1, run="old"),
    ]
    ledger = _Ledger(newest_first)
    assert [row.seen.step for row in rows(ledger)] == [1, 2, 3, 4]
    assert [row.seen for row in rows(ledger, Seen(run_id="old", step=2))] == [
        Seen(run_id="run", step=n) for n in (3, 4)
    ]
    assert rows(ledger, Seen(run_id="run", step=4)) == ()
    # One that was undone since it was seen is still where the rest begins.
    assert [row.seen.step for row in rows(ledger, Seen(run_id="old", step=3))] == [3, 4]


def test_with_a_step_goes_the_publish_before_it_whose_time_it_holds() -> None:
    versions = [version(2, step=2, transfer_s=9.9), version(1, step=1, **PUBLISHED)]
    (row,) = rows(_Ledger([step(2, update_weights_s=0.5)], versions))
    assert row.figures["perf/update_weights_wire_bytes"] == 1000 and row.figures["perf/hold_ms"] == 3.0
    assert row.figures["perf/update_weights_time"] == 0.5


class _Writer:
    def __init__(self, fails_at: int = 0) -> None:
        self.steps: list[int] = []
        self.closed = False
        self._fails_at = fails_at

    def write(self, row: Row) -> None:
        if row.seen.step == self._fails_at:
            self._fails_at = 0
            raise OSError("the disk is full")
        self.steps.append(row.seen.step)

    def close(self) -> None:
        self.closed = True


def _tracker(ledger: list[Any], writer: _Writer, memory: Path) -> Tracker:
    def ask(seen: Seen | None) -> Progress:
        return progress(_Ledger(ledger), seen)  # type: ignore[arg-type]

    return Tracker(ask, lambda: [writer], memory, every_s=0.01)


def test_a_restart_of_the_tracker_repeats_nothing_and_leaves_nothing_out(tmp_path: Path) -> None:
    ledger, writer = [step(2), step(1)], _Writer()
    assert _tracker(ledger, writer, tmp_path / "seen.json").follow() == 2
    ledger[:0] = [step(4), step(3)]
    again = _tracker(ledger, writer, tmp_path / "seen.json")
    assert again.follow() == 2 and again.follow() == 0
    assert writer.steps == [1, 2, 3, 4]


def test_a_logger_that_is_down_gets_the_missing_steps_when_it_is_back(tmp_path: Path) -> None:
    writer = _Writer(fails_at=2)
    tracker = _tracker([step(3), step(2), step(1)], writer, tmp_path / "seen.json")
    with pytest.raises(OSError, match="full"):
        tracker.follow()
    tracker.follow()
    assert writer.steps == [1, 2, 3]


def test_what_is_there_when_it_is_stopped_is_written_and_the_writers_are_closed(tmp_path: Path) -> None:
    writer = _Writer(fails_at=1)
    tracker = _tracker([step(1)], writer, tmp_path / "seen.json")
    tracker._every_s = 0.05
    tracker.start()
    tracker.stop(20.0)
    tracker = _tracker([step(1)], writer, tmp_path / "seen.json")
    tracker._every_s = 60.0
    tracker.start()
    tracker.stop(20.0)
    assert writer.steps == [1] and writer.closed


def _row(number: int, **figures: float) -> Row:
    return Row(seen=Seen(run_id="run", step=number), at=1000.0 + number, figures={"train/step": number, **figures})


def _events(file: Path) -> list[Any]:
    """The events of a file of TensorBoard's, whose records are length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_tensorboard_finds_each_figure_at_its_step_and_time(tmp_path: Path) -> None:
    (writer,) = writers(MetricsConfig(tensorboard="logs"), tmp_path, "tiny", {})
    writer.write(_row(1, **{"train/loss": 0.5}))
    writer.write(_row(2, **{"train/loss": 0.25}))
    writer.close()
    (file,) = (tmp_path / "logs").iterdir()
    scalars = [
        (event.step, value.tag, value.simple_value, event.wall_time)
        for event in _events(file)
        for value in event.summary.value
    ]
    assert [s for s in scalars if s[1] == "train/loss"] == [
        (1, "train/loss", 0.5, 1001.0),
        (2, "train/loss", 0.25, 1002.0),
    ]


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is an extra")
def test_wandb_offline_keeps_one_run_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = MetricsConfig(wandb=WandbConfig(project="clawrl", mode="offline"))
    for number in (1, 2):
        (writer,) = writers(config, tmp_path, "tiny", {"trainer": {"method": "binary_rl"}})
        writer.write(_row(number, **{"train/loss": 0.5}))
        writer.close()
    files = sorted((tmp_path / "wandb").rglob("run-*.wandb"))
    run_id = (tmp_path / "wandb-run-id").read_text()
    assert len(files) == 2 and {file.stem for file in files} == {f"run-{run_id}"}
    assert all(b"train/loss" in file.read_bytes() for file in files)


def test_a_package_that_is_missing_is_one_error_that_names_the_extra() -> None:
    config = MetricsConfig(tensorboard="logs", wandb=WandbConfig(project="p", mode="offline"))
    assert config.problems({}, find=lambda name: object()) == []
    missing = config.problems({}, find=lambda name: None)
    assert missing == [
        "metrics.tensorboard: the package tensorboardX is not installed; install clawrl[tensorboard], or leave "
        "metrics.tensorboard out",
        "metrics.wandb: the package wandb is not installed; install clawrl[wandb], or leave metrics.wandb out",
    ]
    assert MetricsConfig().problems({}, find=lambda name: None) == []


def test_wandb_online_without_a_key_is_found_out_before_anything_starts(tmp_path: Path) -> None:
    config = MetricsConfig(wandb=WandbConfig(project="p"))

    def problems(**env: str) -> list[str]:
        return config.problems({"HOME": str(tmp_path), **env}, find=lambda name: object())

    (why,) = problems()
    assert why.startswith("metrics.wandb.mode: online, but there is no key; set WANDB_API_KEY")
    assert problems(WANDB_API_KEY="x") == []
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password x\n")
    assert problems() == []
    assert problems(WANDB_BASE_URL="https://wandb.example.org") != []


def test_the_deployment_says_so_among_its_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLAWRL_TEST_KEY", "k")
    args = tiny_deployment(tmp_path, 1, metrics={"wandb": {"project": "p"}})["applications"][0]["args"]
    assert any(why.startswith("metrics.wandb") for why in Deployment.model_validate(args).problems())


@pytest.mark.parametrize(
    "settings",
    [{"wandb": {"project": ""}}, {"wandb": {"project": "p", "mode": "shared"}}, {"tensorboard": ""}, {"ledger_s": 60}],
    ids=json.dumps,
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        MetricsConfig.model_validate(settings)
