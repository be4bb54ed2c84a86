"""The engine on the oldest transformers that it allows, which SGLang pins, and on the newest there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE_TESTS = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_engine_*.py"))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", ["==5.19.0", ""], ids=["oldest", "newest"])
def test_the_engine_tests_pass_with(release: str, tmp_path: Path) -> None:
    wheels = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(wheels)]
    subprocess.run([*install, f"transformers{release}"], check=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(wheels), str(ROOT)])}
    shown = subprocess.run(
        [sys.executable, "-c", "import transformers; print(transformers.__version__, transformers.__file__)"],
        env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert str(wheels) in shown and release.lstrip("=") in shown
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ENGINE_TESTS],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
