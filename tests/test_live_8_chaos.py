"""Kills at random over a cluster under steady traffic, and every turn accounted for: twenty, and two hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.launch import chaos
from tests.chaos.plan import SHARES, Kind


@pytest.mark.timeout(420)
def test_after_twenty_kills_every_turn_is_trained_once_or_dropped_and_only_streams_of_dead_replicas_failed(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    report = chaos(tmp_path, "--kills", "20", "--seed", "11", "--within", "100", limit_s=400)
    record_property("chaos", {name: report[name] for name in ("kills", "requests", "failed_by", "recovery_s")})
    assert report["complaints"] == [], report["output"]
    # What a slow machine had no time for is in the report; what was done has to be of many kinds.
    assert report["kills"]["done"] >= 10 and set(report["kills"]) >= {Kind.COORDINATOR, Kind.REPLICA, Kind.RANK}
    assert report["requests"]["whole"] > 20 and report["turns"]["trained"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(4500)
def test_after_two_hundred_kills_every_turn_is_trained_once_or_dropped(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--kills", "200", "--within", "3300", limit_s=4200)
    assert report["complaints"] == [], report["output"]
    assert set(report["kills"]) >= {str(kind) for kind in SHARES} and report["inside_a_broadcast"] > 0, report["output"]
