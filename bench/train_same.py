"""Whether all contestants take the same step: gradients and weights of the first, against those of the plain loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

_GRADIENTS_APART = 1e-3
_UPDATES_APART = 0.05
"""Adam divides by a gradient's own size: where that is rounding alone, so is the direction of the update."""


@dataclass(frozen=True, slots=True)
class FirstStep:
    folder: Path
    told: Mapping[str, float]


def compare(model: Path, firsts: Mapping[str, FirstStep], to: str = "plain") -> list[dict[str, Any]]:
    """Distances are relative: to the length of the gradient, and to that of the update. Ends the bench if too large."""
    start = dict(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_parameters())
    found = []
    for name, first in firsts.items():
        one = {
            "name": name,
            "loss": first.told["loss"],
            "grad_norm": first.told["grad_norm"],
            "gradients_apart": _apart(first.folder, firsts[to].folder, "gradients", {}),
            "updates_apart": _apart(first.folder, firsts[to].folder, "weights", start),
        }
        found.append(one)
        if not (one["gradients_apart"] < _GRADIENTS_APART and one["updates_apart"] < _UPDATES_APART):
            raise SystemExit(f"{name} does not take the step that {to} takes: {one}")
    return found


def _apart(mine: Path, theirs: Path, what: str, origin: Mapping[str, torch.Tensor]) -> float:
    square = whole = 0.0
    with (
        safe_open(mine / f"{what}.safetensors", "pt") as a,  # type: ignore[no-untyped-call]
        safe_open(theirs / f"{what}.safetensors", "pt") as b,  # type: ignore[no-untyped-call]
    ):
        if set(a.keys()) != set(b.keys()):
            raise SystemExit(f"{mine.name} and {theirs.name} train different parameters")
        for name in b.keys():  # noqa: SIM118
            start = origin[name].detach().double() if origin else 0.0
            ours, other = a.get_tensor(name).double(), b.get_tensor(name).double()
            square += float((ours - other).square().sum())
            whole += float((other - start).square().sum())
    return float((square / whole) ** 0.5)
