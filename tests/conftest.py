"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from clawrl.engine.sglang import SglangEngine
from tests.console_fake import Fake
from tests.console_page_kit import Open, Stage, console_stages, pages
from tests.live import GUARDS_FOR_RANDOM_WEIGHTS, Live, free_port, tiny_deployment
from tests.sglang_fake import Play, staged
from tests.sglang_kit import Loop, running_sglang
from tests.tiny_model import build_tiny_model

if TYPE_CHECKING:
    from tests.operator_house import House

ALONE = (
    "test_console_page_",
    "test_live_",
    "test_demo.py",
    "test_sglang_generation.py",
    "test_sglang_publishing.py",
    "test_sglang_server.py",
)
"""Files of tests that run whole graphs, engines or servers and mind the time: not beside other tests."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose tests are all of the other kind is not even imported, which takes longer than some of them."""
    wanted: str = config.option.markexpr
    if not collection_path.name.startswith("test_") or "alone" not in wanted:
        return None
    is_alone = collection_path.name.startswith(ALONE)
    return True if is_alone == wanted.startswith("not alone") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith(ALONE):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny chat model, the same for the whole run."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights: a 'next version' to publish."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture(scope="session")
def tiny_qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "qwen3", kind="qwen3")


@pytest.fixture(scope="session")
def tiny_sglang(tiny_qwen3_folder: Path) -> Iterator[tuple[Loop, SglangEngine]]:
    """A real SGLang for all tests of the engine: it takes a while to start. Which version it serves is not theirs."""
    with running_sglang(tiny_qwen3_folder, max_running_requests=8) as running:
        yield running


@pytest.fixture
def play(tiny_folder: Path, other_tiny_folder: Path, tmp_path: Path) -> Play:
    """Plays a story of new weights on a fake SGLang."""
    return lambda story, **settings: staged(tiny_folder, other_tiny_folder, tmp_path, story, **settings)


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
        guards=GUARDS_FOR_RANDOM_WEIGHTS,
    )
    with Live(file) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def console_stage() -> Iterator[Stage]:
    with console_stages() as stage:
        yield stage


@pytest.fixture
def fake(console_stage: Stage) -> Fake:
    """What the console's server knows."""
    return console_stage.begin()


@pytest.fixture
def open_page(console_stage: Stage, fake: Fake) -> Iterator[Open]:
    """Opens the console's page on a view."""
    with pages(console_stage) as opens:
        yield opens


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A server that nothing was said to yet."""
    # Here and not above: it brings Ray Serve along, which most tests need not wait for.
    from tests.operator_house import house

    with house(tmp_path / "state", monkeypatch) as made:
        yield made
