"""The deployment that real clients are tried with: its tiny model calls tools, and nothing that is said trains it."""

from __future__ import annotations

from typing import Any

from tests.clients import CACHE
from tests.live import free_port, tiny_deployment
from tests.tool_model import CONTEXT_LENGTH, build_tool_model


def tool_deployment() -> dict[str, Any]:
    return tiny_deployment(
        build_tool_model(CACHE / "models"),
        free_port(),
        judge__verdict={"kind": "tests.silent_judge:abstains"},
        # Every client says the same and hears the same.
        guards__filters={"duplicates": "keep", "min_zlib_ratio": 0.0},
        policy__engine__context_length=CONTEXT_LENGTH,
        policy__engine__kv_blocks=256,
        # It was not trained to be drawn from, only to know what it says.
        serving__sampling={"temperature": 0.3, "max_tokens": 200},
    )
