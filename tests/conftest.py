"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from tests.live import Live, free_port, tiny_deployment
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny chat model, the same for the whole run."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights: a 'next version' to publish."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture
def build_model(tmp_path: Path) -> Callable[..., Path]:
    return lambda **options: build_tiny_model(tmp_path / f"model{len(list(tmp_path.iterdir()))}", **options)


@pytest.fixture(scope="session")
def live(tiny_folder: Path) -> Iterator[Live]:
    """One running deployment with two policy replicas, shared by every live test; starting one takes a while."""
    file = tiny_deployment(
        tiny_folder,
        free_port(),
        replicas=2,
        trainer__method={"name": "combine", "baseline": "none"},
        judge__hints={"source": "quoting", "reuse": "session"},
        # Random weights say anything: only answers of two tokens are to set the alarm off. (Those that a client cut to
        # one would be short by its doing.)
        guards__alarms={
            "window": 24,
            "min_turns": 12,
            "short_tokens": 1,
            "max_share_short": 0.9,
            "min_mean_tokens": 3,
            "max_repetitive_share": 1.0,
            "max_kl": 1e6,
            "max_fluency_drop": 1e6,
            "min_lift_share": 0.0,
        },
        guards__filters={"duplicates": "keep", "min_zlib_ratio": 0.0},
    )
    with Live(file) as deployment:
        yield deployment
