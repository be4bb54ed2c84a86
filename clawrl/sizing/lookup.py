"""The shape of a configured model, from what this machine has: its folder, a cache, or the table. Never the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clawrl.models import ModelConfig, on_this_machine
from clawrl.sizing.architecture import Architecture, UnknownArchitecture, read_architecture
from clawrl.sizing.known import KNOWN


def find_architecture(model: ModelConfig) -> Architecture:
    """Raises `UnknownArchitecture`, whose text says what was missing."""
    folder = on_this_machine(model)
    if folder is not None:
        return read_architecture(_content(folder / "config.json"))
    if model.source in KNOWN:
        return KNOWN[model.source]
    raise UnknownArchitecture("it is not on this machine, nor in clawrl's table of known models")


def find_heads(model: ModelConfig) -> tuple[int, int] | None:
    """Attention and key/value heads, which a config.json of any architecture has; None if they are not known here."""
    folder = on_this_machine(model)
    if folder is None:
        known = KNOWN.get(model.source)
        return (known.heads, known.kv_heads) if known is not None else None
    try:
        content = _content(folder / "config.json")
    except UnknownArchitecture:
        return None
    text = content.get("text_config") or content
    heads = text.get("num_attention_heads")
    return (int(heads), int(text.get("num_key_value_heads") or heads)) if heads else None


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UnknownArchitecture(f"its config.json cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UnknownArchitecture("its config.json is not a JSON object")
    return content
