"""The script for a machine with one GPU, here on a CPU with a tiny shape: every figure comes, no failure hides one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.report import FIGURES, Row, Verdict, complete, failures, table
from tests.gpu.runner import Job, Outcome, run_section
from tests.gpu.shapes import SHAPES, peak_flops, step_flops
from tests.gpu.wheels import use_wheels

ROOT = Path(__file__).parents[1]
SECTIONS = ("weights", "trainer", "engine", "parity bfloat16", "parity float32", "publish")


def script(tmp_path: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what it printed and its JSON."""
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.gpu.one_gpu", "--device", "cpu", "--shapes", "tiny", "--json", str(file)]
    done = subprocess.run(
        [*command, "--work", str(tmp_path), *options], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert file.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, json.loads(file.read_text())


@pytest.mark.nightly
def test_every_figure_is_measured_and_every_check_passes_on_a_cpu(tmp_path: Path) -> None:
    status, printed, found = script(tmp_path)
    rows = {(row["section"], row["figure"]): row for row in found["rows"]}
    assert list(rows) == [(section, name) for section in SECTIONS for name, _ in FIGURES[section.split()[0]]]
    assert [row for row in rows.values() if row["verdict"] in ("FAILED", "MISSING")] == []
    assert status == 0 and "all 36 rows are good" in printed
    # Nobody knows a CPU's peak: that figure alone has no number, and says why.
    assert [key for key, row in rows.items() if row["value"] is None] == [("trainer", "MFU")]
    assert all(row["value"] > 0 for row in rows.values() if row["value"] is not None)
    assert "no peak is known" in rows["trainer", "MFU"]["note"]
    checked = {key for key, row in rows.items() if row["verdict"] == "ok"}
    assert {
        ("trainer", "changed"),
        ("publish", "gloo: after - cold"),
        ("parity float32", "scored - trainer, max"),
    } <= checked
    assert found["device"] == "cpu" and found["torch"]
    assert list(tmp_path.iterdir()) == [tmp_path / "figures.json"], "the weights are gone"


def test_a_section_that_fails_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    status, printed, found = script(tmp_path, "--sections", "weights,trainer,parity float32", "--fail", "trainer")
    verdicts = {row["section"]: row["verdict"] for row in found["rows"] if row["figure"] in ("step", "folder")}
    assert status == 1 and verdicts == {"weights": "", "trainer": "MISSING"}
    missing = [row for row in found["rows"] if row["section"] == "trainer"]
    assert len(missing) == len(FIGURES["trainer"]) and all("made to fail" in row["note"] for row in missing)
    later = [row for row in found["rows"] if row["section"] == "parity float32"]
    assert len(later) == len(FIGURES["parity"]) and all(row["value"] is not None for row in later)
    assert f"{len(missing)} of {len(found['rows'])} rows failed or are missing" in printed


def test_without_time_every_row_is_there_and_says_so(tmp_path: Path) -> None:
    status, _, found = script(tmp_path, "--budget-s", "1")
    assert status == 1 and len(found["rows"]) == 36
    assert {row["note"] for row in found["rows"]} == {"not begun: the time was up"}


# -- sections in processes of their own ---------------------------------------------------------------


def well(job: Job, tell: Callable[[Any], None]) -> None:
    tell(_row("folder"))
    tell({"device": job.device})


def raises(job: Job, tell: Callable[[Any], None]) -> None:
    tell(_row("folder"))
    raise ValueError("no such thing\nand more")


def crashes(job: Job, tell: Callable[[Any], None]) -> None:
    tell(_row("folder"))
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(job: Job, tell: Callable[[Any], None]) -> None:
    child = subprocess.Popen(["sleep", "300"])
    tell({"child": str(child.pid)})
    tell(_row("folder"))
    time.sleep(300)


def _row(figure: str) -> Row:
    return Row(shape="tiny", section="weights", figure=figure, value=1.0, unit="GB")


def section(name: str, start: str = "fork", limit_s: float = 60.0) -> Outcome:
    job = Job(shape="tiny", section="weights", folder=Path("/nowhere"), device="cpu")
    return run_section(multiprocessing.get_context(start), f"tests.test_gpu_script:{name}", job, limit_s)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_section_tells_rows_and_facts(start: str) -> None:
    outcome = section("well", start)
    assert outcome.problem == "" and outcome.rows == [_row("folder")] and outcome.facts == {"device": "cpu"}


@pytest.mark.parametrize(
    ("name", "problem"), [("raises", "ValueError: no such thing"), ("crashes", "ended with code -9")]
)
def test_a_section_that_ends_badly_keeps_what_it_had_told(name: str, problem: str) -> None:
    outcome = section(name)
    assert outcome.rows == [_row("folder")] and problem in outcome.problem and "and more" not in outcome.problem


def test_a_section_that_hangs_is_ended_with_all_it_started() -> None:
    outcome = section("hangs", limit_s=3.0)
    assert outcome.rows == [_row("folder")] and outcome.problem == "stopped after 3 s" and outcome.seconds < 50
    deadline = time.monotonic() + 50
    while _lives(int(outcome.facts["child"])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(int(outcome.facts["child"]))


def _lives(pid: int) -> bool:
    try:
        # A zombie that nobody collects has ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- rows, figures, wheels ----------------------------------------------------------------------------


def test_what_was_not_reported_is_missing_for_the_reason_given() -> None:
    rows = complete("tiny", "weights", [_row("folder")], "it broke")
    assert [(row.figure, row.verdict) for row in rows] == [
        ("parameters", Verdict.MISSING),
        ("folder", Verdict.NONE),
        ("made in", Verdict.MISSING),
    ]
    assert len(failures(rows)) == 2 and "it broke" in table(rows)
    assert len({line.index("GB") for line in table(rows).splitlines() if "GB" in line}) == 1


def test_the_cost_of_a_step_is_six_times_weights_times_tokens_and_attention() -> None:
    shape = SHAPES["tiny"]
    per_layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128
    body, head = 2 * per_layer, 512 * 64
    assert step_flops(shape, [10, 20], 12) == 6 * (body * 30 + head * 12 + 2 * 64 * (10**2 + 20**2))


def test_the_big_shapes_are_as_large_as_they_are_called() -> None:
    # Without the embedding: 0.44 and 3.6 thousand millions in the models whose shapes these are.
    for name, millions in (("0.6b", 440), ("4b", 3633)):
        shape = SHAPES[name]
        body = step_flops(shape, [1], 0) / 6 - shape.layers * shape.heads * shape.head_dim
        assert body / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", None),
        ("cpu", None),
    ],
)
def test_a_peak_is_known_or_it_is_not(device: str, tera: float | None) -> None:
    assert peak_flops(device) == (None if tera is None else tera * 1e12)


def test_wheels_are_imported_ahead_of_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with zipfile.ZipFile(tmp_path / "carried_thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_thing.py", "NAME = 'carried'\n")
    assert use_wheels(tmp_path, tmp_path / "site") == ["carried_thing-1-py3-none-any.whl"]
    import carried_thing  # type: ignore[import-not-found]

    assert carried_thing.NAME == "carried" and sys.path[0] == str(tmp_path / "site")
    with pytest.raises(FileNotFoundError):
        use_wheels(tmp_path / "site", tmp_path)
