"""The shapes of well-known models, so that a deployment can be checked before anything of it was downloaded.

By hub id. The figures are those of the models' own config.json; a copy of that file on this machine goes before them.
"""

from __future__ import annotations

from clawrl.sizing.architecture import Architecture


def _qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool, context: int = 40_960
) -> Architecture:
    """What the dense models of the third generation have in common."""
    return Architecture(
        family="qwen3",
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocab=151_936,
        tied=tied,
        context=context,
    )


KNOWN = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-4B-Thinking-2507": _qwen3(2560, 9728, 36, 32, tied=True, context=262_144),
    "Qwen/Qwen3-4B-Instruct-2507": _qwen3(2560, 9728, 36, 32, tied=True, context=262_144),
    "Qwen/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, tied=False),
    "Qwen/Qwen3-14B": _qwen3(5120, 17_408, 40, 40, tied=False),
    "Qwen/Qwen3-32B": _qwen3(5120, 25_600, 64, 64, tied=False),
}
