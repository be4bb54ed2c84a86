"""How SGLang is started: what its command line says of our settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from clawrl.engine.config import EngineConfig
from clawrl.engine.sglang_server import launch_arguments


@pytest.mark.parametrize("key", ["plain", "-begins-with-a-dash", "--two"])
def test_any_key_reaches_the_server_as_its_key(key: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    # As the server reads it. One in 64 keys begins with a dash, and was taken for a flag: the server did not start.
    read, _ = parser.parse_known_args(launch_arguments(Path("model"), EngineConfig(kind="sglang"), 1, key)[2:])
    assert read.api_key == key
