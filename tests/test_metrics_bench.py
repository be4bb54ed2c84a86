"""The arithmetic of what metrics cost."""

from __future__ import annotations

import pytest

from bench import metrics
from bench.ingress_load import Load, Target


def test_the_ratio_is_taken_within_rounds_so_that_slow_minutes_meet_both() -> None:
    rows = [{"on": 98.0, "off": 100.0}, {"on": 49.0, "off": 50.0}, {"on": 9.8, "off": 10.0}]
    found = metrics.summary(rows)
    assert [found[name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx([0.98] * 3)
    assert (found["on"], found["off"]) == (49.0, 50.0)


def test_rounds_that_disagree_give_a_wide_interval_around_their_median() -> None:
    found = metrics.summary([{"on": ratio, "off": 1.0} for ratio in (0.8, 0.9, 1.0, 1.1, 1.2)])
    assert found["ratio_low"] < 0.95 < found["ratio"] == 1.0 < 1.05 < found["ratio_high"]


def test_who_is_asked_first_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    async def load(target: Target, *, stream: bool, connections: int, for_s: float) -> Load:
        asked.append((target.name, stream))
        return Load(seconds=(0.1,) * (9 if target.name == "on" else 10), wall_s=1.0)

    monkeypatch.setattr(metrics, "load", load)
    targets = {name: Target(name=name, url="", key="", model="") for name in ("on", "off")}
    found = metrics.measure(targets, rounds=2, for_s=1.0)
    rounds = [name for name, _ in asked[2:]]
    assert rounds == ["on", "off"] * 2 + ["off", "on"] * 2
    assert found["answers"] == found["streams"] == [{"on": 9.0, "off": 10.0}] * 2
    assert metrics.report(found)["answers"]["ratio"] == pytest.approx(0.9)
