"""The demo for real: the embedded model, the shipped deployment, ten published versions. Minutes on two cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import REPOSITORY


@pytest.mark.nightly
@pytest.mark.timeout(2700)
def test_the_demo_closes_the_loop_on_the_embedded_model(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    command = [str(Path(sys.executable).parent / "clawrl"), "demo", "--output", str(output), "--target-version", "10"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=2600, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["passed"] and summary["versions_published"] >= 10 and summary["failures"] == []
    assert summary["turns"]["adds_up"] and summary["turns"]["recorded"] == summary["answers"]
    # Chance would be a half; the judge is a 135M model.
    assert summary["judge_agreement"]["share"] > 0.65
    assert (output / "learning.png").read_bytes().startswith(b"\x89PNG")
