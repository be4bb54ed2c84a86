"""Two hundred kills in an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.launch import chaos
from tests.chaos.plan import SHARES

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(4500)
def test_after_two_hundred_kills_every_turn_is_trained_once_or_dropped(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--kills", "200", "--within", "3300", limit_s=4200)
    assert report["complaints"] == [], report["output"]
    assert set(report["kills"]) >= {str(kind) for kind in SHARES} and report["inside_a_broadcast"] > 0, report["output"]
