"""The engine that a configuration names."""

from __future__ import annotations

from pathlib import Path

from clawrl.engine.config import EngineConfig
from clawrl.engine.protocol import Engine
from clawrl.engine.sglang import SglangEngine
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import AdapterShape


def make_engine(
    folder: Path,
    config: EngineConfig,
    *,
    generates: bool = True,
    updates: bool = False,
    decide_within_s: float = 0.0,
    adapters: AdapterShape | None = None,
) -> Engine:
    """An engine for the model in ``folder``, not started yet.

    ``generates``: it is asked for words, and not for log-probs alone. ``updates``: versions will be published to it; an
    engine that holds requests meanwhile waits at most ``decide_within_s`` for the word that lets it go on.
    ``adapters``: those versions may be adapters of this shape.
    """
    if config.kind == "sglang":
        return SglangEngine(folder, config, updates=updates, decide_within_s=decide_within_s, adapters=adapters)
    return TransformersEngine(folder, config, generates=generates, adapters=adapters)
