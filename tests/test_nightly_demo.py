"""The demo for real: the embedded model and the shipped deployment learn, with every seed. Minutes on two cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import REPOSITORY
from tests.sglang_kit import needs_sglang


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("deployment", "seed"),
    [("laptop", 0), ("laptop", 1), ("laptop", 2), pytest.param("laptop-sglang", 0, marks=needs_sglang)],
)
def test_the_demo_learns_with_the_embedded_model(tmp_path: Path, deployment: str, seed: int) -> None:
    output = tmp_path / "demo"
    file = f"deployments/{deployment}.yaml"
    program = str(Path(sys.executable).parent / "clawrl")
    command = [program, "demo", "--deployment", file, "--output", str(output), "--seed", str(seed)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1400, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    summary = json.loads((output / "summary.json").read_text())
    # Stated here again: nobody is to loosen the demo's own checks unnoticed.
    first, last = summary["first_answers"]["first"], summary["first_answers"]["last"]
    assert first["answers"] == last["answers"] == 16
    assert first["accepted_share"] <= 0.25 and last["accepted_share"] >= 0.75 and last["mean_words"] >= 8
    before, after = summary["measures"]["version_0"], summary["measures"]["last"]
    assert after["fluency"] >= before["fluency"] - 0.3 and after["lift"] >= before["lift"] / 2
    assert summary["seconds"]["total"] <= 720 and summary["versions_published"] >= 10 and summary["failures"] == []
    assert summary["turns"]["adds_up"] and summary["turns"]["recorded"] == summary["answers"]
    # Chance would be a half; the judge is a 135M model.
    assert summary["judge_agreement"]["share"] > 0.65
    assert (output / "learning.png").read_bytes().startswith(b"\x89PNG")
