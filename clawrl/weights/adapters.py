"""Adapters as tensors: their names, whether they fit a model, and what they make of its weights.

The adapter of ``X.weight`` is ``X.lora_A.weight`` [rank, in] and ``X.lora_B.weight`` [out, rank], in the weight's own
dtype. `added` is the one formula for whole weights; the trainer publishes by it, and so does whoever merges later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from clawrl.messages import AdapterShape, TensorSpec


def names_of(weight: str) -> tuple[str, str]:
    """The names of A and B for the weight of this name."""
    layer = weight.removesuffix(".weight")
    return f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"


def expected_adapters(weights: Mapping[str, TensorSpec], shape: AdapterShape) -> Iterator[TensorSpec]:
    """The tensors that adapters of ``shape`` have for a model with these ``weights``, in their order."""
    for name, spec in weights.items():
        path, _, kind = name.rpartition(".")
        if kind == "weight" and path.rpartition(".")[2] in shape.targets and len(spec.shape) == 2:
            a, b = names_of(name)
            yield TensorSpec(name=a, dtype=spec.dtype, shape=(shape.rank, spec.shape[1]))
            yield TensorSpec(name=b, dtype=spec.dtype, shape=(spec.shape[0], shape.rank))


@torch.no_grad()
def added(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """``weight`` with its adapter added in float32, in ``weight``'s dtype; itself, if the adapter adds nothing."""
    # Untouched bits, not bits plus zero: a version's digest is over them, and -0 + 0 is another zero.
    if not b.any():
        return weight
    return (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)


def merge(
    base: Mapping[str, torch.Tensor], adapters: Mapping[str, torch.Tensor], shape: AdapterShape
) -> dict[str, torch.Tensor]:
    """Whole weights: ``base`` with the adapters added in. ``base`` is left as it is."""
    whole = {}
    for name, weight in base.items():
        a, b = names_of(name)
        whole[name] = added(weight, adapters[a], adapters[b], shape.scale) if a in adapters else weight
    return whole
