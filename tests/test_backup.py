"""`clawrl backup`: a copy that can take the place of the state folder, made under a deployment that goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from clawrl import backup as module
from clawrl import cli
from clawrl.backup import BackupError, back_up, back_up_file
from clawrl.config import Deployment, read_deployment
from clawrl.ledger import Ledger
from clawrl.ledger.folder import Holder, hold
from clawrl.messages import AdapterShape, Addition, LedgerPosition, PolicyVersion, WeightManifest
from clawrl.privacy.opening import open_ledger
from clawrl.training.checkpoint import read_position, write_index, write_state
from clawrl.weights.manifest import build_manifest
from clawrl.weights.snapshot import snapshot_name, write_snapshot
from tests.ledger_kit import ask, serve, user
from tests.live import tiny_deployment


@dataclasses.dataclass(frozen=True)
class Lived:
    """``file`` describes a deployment that published three versions, recorded five turns and wrote a checkpoint."""

    file: Path

    @property
    def deployment(self) -> Deployment:
        return read_deployment(self.file)

    @property
    def state(self) -> Path:
        return self.deployment.state_path

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.state, self.deployment.ledger, self.deployment.privacy)


@pytest.fixture
def lived(tmp_path: Path) -> Lived:
    file = tmp_path / "deployment.yaml"
    settings = tiny_deployment(tmp_path / "model", 1, state_dir=str(tmp_path / "state"), judge__verdict={"margin": 0.1})
    file.write_text(yaml.safe_dump(settings))
    lived = Lived(file)
    with lived.ledger as ledger:
        for number in range(3):
            publish(lived, ledger, number)
        for number in range(5):
            record(ledger, number)
        ledger.restored("run", 0)
        checkpoint(lived.state, ledger.ledger_id, 0)
    (lived.state / "guards.json").write_text('{"baseline": 1}')
    (lived.state / "journal").mkdir()
    (lived.state / "journal" / "a-1.journal").write_bytes(b"a turn\n")
    return lived


def publish(lived: Lived, ledger: Ledger, number: int, addition: Addition | None = None) -> WeightManifest:
    tensors = {"layer.weight": torch.full((2, 2), float(number))}
    manifest = build_manifest(number, tensors, bucket_bytes=1 << 20, addition=addition)
    snapshot = write_snapshot(lived.state / "snapshots", manifest, tensors)
    version = PolicyVersion(
        version=number, step=2 * number, snapshot=str(snapshot), digest=manifest.digest, published_at=1.0 + number
    )
    ledger.commit_version(version)
    return manifest


def record(ledger: Ledger, number: int) -> None:
    talk = user(f"question {number}")
    arrival = ask(f"turn-{number}", talk, session=f"s{number}")
    ledger.arrive(arrival)
    ledger.record(serve(arrival, talk, f"answer {number}"))


def checkpoint(state: Path, ledger: str, step: int, run: str = "run") -> Path:
    folder = state / "checkpoints" / f"{step + 1:06d}-step-{step:08d}-{run}"
    write_state(folder, {"step": step})
    write_index(folder, step, LedgerPosition(ledger=ledger, run=run, step=step))
    return folder


def test_the_copy_has_turns_versions_checkpoint_snapshots_journals_and_baseline(lived: Lived, tmp_path: Path) -> None:
    with lived.ledger as ledger:
        older = ledger.version(1)
    assert older is not None
    # As pruning does; what is kept is in the copy.
    shutil.rmtree(older.snapshot)
    made = back_up_file(lived.file, tmp_path / "copies" / "monday")
    copy, state = tmp_path / "copies" / "monday", lived.state
    assert (made.turns, made.step, made.version) == (5, 0, 2)
    assert json.loads((copy / "backup.json").read_text()) == dataclasses.asdict(made)
    assert made.folder == str(state) and made.deployment == "tiny"
    for name in ("guards.json", "journal/a-1.journal"):
        assert (copy / name).read_bytes() == (state / name).read_bytes()
    (folder,) = (copy / "checkpoints").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "rank-0-of-1.pt"]
    assert [path.name[:7] for path in sorted((copy / "snapshots").iterdir())] == ["v000000", "v000002"]
    assert list(copy.parent.iterdir()) == [copy], "nothing else stays behind"
    assert copy.stat().st_mode & 0o077 == 0 and (copy / "ledger.sqlite").stat().st_mode & 0o077 == 0


def test_put_back_it_is_what_was_there_and_training_may_go_on_from_its_checkpoint(lived: Lived, tmp_path: Path) -> None:
    state = lived.state
    back_up(lived.deployment, tmp_path / "copy")
    with lived.ledger as ledger:
        before = ledger.counts(), ledger.current_version(), ledger.ledger_id
        record(ledger, 99)
    shutil.rmtree(state)
    # As the documentation says it.
    subprocess.run(["cp", "-a", str(tmp_path / "copy"), str(state)], check=True)
    with lived.ledger as ledger:
        assert (ledger.counts(), ledger.current_version(), ledger.ledger_id) == before
        assert ledger.counts().adds_up
        current = ledger.current_version()
        assert current is not None and Path(current.snapshot).is_dir()
        positions = [read_position(folder) for folder in (state / "checkpoints").iterdir()]
        assert ledger.resumable([position for position in positions if position is not None]) == 0


def test_a_deployment_that_writes_all_the_time_is_copied_at_one_moment_and_goes_on(
    lived: Lived, tmp_path: Path
) -> None:
    """From another process, as an operator does: in this one it would take the writer's locks away."""
    state, done = lived.state, threading.Event()
    numbers = iter(range(1_000, 10**6))
    with lived.ledger as ledger:
        copying = subprocess.Popen(
            [sys.executable, "-m", "clawrl.cli", "backup", str(tmp_path / "copy"), "--deployment", str(lived.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=lambda: (copying.wait(), done.set()), daemon=True).start()
        while not done.wait(0.001):
            record(ledger, next(numbers))
        output = copying.stdout.read() if copying.stdout else ""
        assert copying.returncode == 0, output
        # The writer's log is still there, and what it commits now is found by whoever opens the file next.
        assert (state / "ledger.sqlite-wal").exists()
        record(ledger, next(numbers))
        recorded = ledger.counts().recorded
    with lived.ledger as again:
        assert again.counts().recorded == recorded
    with Ledger(tmp_path / "copy" / "ledger.sqlite", lived.deployment.ledger) as copy:
        counts = copy.counts()
        assert counts.adds_up and 5 <= counts.recorded < recorded
        assert counts.recorded == len(copy.turns(limit=10**6)), "a half-written batch is in nobody's copy"


def test_a_ledger_whose_writer_was_killed_is_copied_with_what_its_log_holds(lived: Lived, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from clawrl.ledger import Ledger\n"
        "from clawrl.ledger.config import LedgerConfig; from tests.ledger_kit import say, user\n"
        "ledger = Ledger(Path(sys.argv[1]), LedgerConfig()); say(ledger, 'late', user('hi'), 'hello'); os._exit(9)"
    )
    file = lived.state / "ledger.sqlite"
    assert subprocess.run([sys.executable, "-c", code, str(file)], check=False).returncode == 9
    assert (lived.state / "ledger.sqlite-wal").stat().st_size > 0
    assert back_up(lived.deployment, tmp_path / "copy").turns == 6


def test_a_checkpoint_that_came_after_the_ledgers_copy_is_not_in_the_backup(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order would have training refuse what is newer than its ledger."""
    state, real = lived.state, module.copy_ledger

    def copy_and_train_on(source: Path, target: Path) -> None:
        real(source, target)
        checkpoint(state, "of this ledger", 8)

    monkeypatch.setattr(module, "copy_ledger", copy_and_train_on)
    assert back_up(lived.deployment, tmp_path / "copy").step == 0
    assert len(list((tmp_path / "copy" / "checkpoints").iterdir())) == 1


def test_unfinished_checkpoints_and_ray_trains_own_files_are_left_out(lived: Lived, tmp_path: Path) -> None:
    state = lived.state
    write_state(state / "checkpoints" / "000009-step-00000009-run", {"step": 9})
    (state / "checkpoints" / "training").mkdir()
    back_up(lived.deployment, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy" / "checkpoints").iterdir()] == ["000001-step-00000000-run"]


def test_a_version_that_replaces_the_current_one_during_the_copy_is_the_one_in_it(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, real = lived.state, module.copy_ledger

    def copy_and_publish(source: Path, target: Path) -> None:
        real(source, target)
        monkeypatch.setattr(module, "copy_ledger", real)
        with lived.ledger as ledger:
            current = ledger.current_version()
            assert current is not None
            newer = state / "snapshots" / "v000003-newer"
            Path(current.snapshot).rename(newer)
            ledger.commit_version(dataclasses.replace(current, version=3, snapshot=str(newer)))

    monkeypatch.setattr(module, "copy_ledger", copy_and_publish)
    assert back_up(lived.deployment, tmp_path / "copy").version == 3
    assert (tmp_path / "copy" / "snapshots" / "v000003-newer").is_dir()


def test_adapters_come_with_the_whole_weights_that_they_are_added_to_or_not_at_all(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lived.ledger as ledger:
        base = publish(lived, ledger, 3)
        shape = AdapterShape(rank=2, alpha=4.0, targets=("q_proj",))
        for number in (4, 5):
            publish(lived, ledger, number, Addition(shape=shape, base_version=3, base_digest=base.digest))
    back_up(lived.deployment, tmp_path / "copy")
    kept = sorted(path.name[:7] for path in (tmp_path / "copy" / "snapshots").iterdir())
    assert kept == [f"v00000{number}" for number in range(6)]
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    shutil.rmtree(lived.state / "snapshots" / snapshot_name(3, base.digest))
    with pytest.raises(BackupError, match="snapshots went away"):
        back_up(lived.deployment, tmp_path / "another")


def test_what_is_always_missing_ends_the_backup_and_leaves_nothing(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    with lived.ledger as ledger:
        current = ledger.current_version()
    assert current is not None
    shutil.rmtree(current.snapshot)
    with pytest.raises(BackupError, match=r"snapshots went away 5 times.*clawrl pause"):
        back_up(lived.deployment, tmp_path / "out" / "copy")
    assert list((tmp_path / "out").iterdir()) == []


def test_each_thing_that_is_wrong_is_one_line_with_its_remedy(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, state = lived.deployment, lived.state
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "lived.txt").write_text("precious")
    for target in (tmp_path / "full", tmp_path / "full" / "lived.txt"):
        with pytest.raises(BackupError, match="is there already and is not overwritten"):
            back_up(deployment, target)
    with pytest.raises(BackupError, match="is inside the state folder"):
        back_up(deployment, state / "copy")
    with pytest.raises(BackupError, match="holds no ledger"):
        back_up(deployment.model_copy(update={"state_dir": str(tmp_path / "never")}), tmp_path / "copy")
    elsewhere = Holder(name="tiny", pid=1, host="another-machine", since=1.0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "holder", lambda folder: elsewhere)
        with pytest.raises(BackupError, match="run this on another-machine"):
            back_up(deployment, tmp_path / "copy")
    held = hold(state, "tiny")
    assert back_up(deployment, tmp_path / "copy").version == 2, "a deployment that runs here is no obstacle"
    held.release()
    result = CliRunner().invoke(cli.app, ["backup", str(tmp_path / "x"), "--deployment", "no/such/file.yaml"])
    assert result.exit_code == 1 and "is not a deployment file" in result.output and "Traceback" not in result.output


def test_a_damaged_ledger_is_told_and_not_kept_as_a_backup(lived: Lived, tmp_path: Path) -> None:
    file = lived.state / "ledger.sqlite"
    whole = bytearray(file.read_bytes())
    for page in range(2, len(whole) // 4096):
        whole[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(whole)
    with pytest.raises(BackupError, match=r"is damaged|cannot be copied"):
        back_up(lived.deployment, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
