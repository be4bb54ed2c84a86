"""Commands of the documentation that take too long for every day."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_commands import ROOT


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_engine_is_compared_with_its_library_as_the_page_says_it(tiny_folder: Path) -> None:
    command = [sys.executable, "bench/engine_overhead.py", str(tiny_folder), "--requests=2", "--tokens=8", "--rounds=1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "ratio" in result.stdout
