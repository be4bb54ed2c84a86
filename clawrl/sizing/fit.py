"""Does it fit? Bytes needed on each GPU against bytes there are, as figures and, if it does not, as one sentence.

An engine's need is what it really allocates at the start: weights, the whole cache, and a reserve for what every
process on a GPU takes. A trainer's is a lower bound, since activations depend on the batches: what is refused cannot
fit, and what is not refused may still be too much. Refusing what might fit would be worse.
"""

from __future__ import annotations

from dataclasses import dataclass

from clawrl.engine.config import EngineConfig
from clawrl.sizing.architecture import DTYPE_BYTES, Architecture, kv_bytes_per_token, parameters

GIB = 2**30
RESERVE_GIB = 1.0
"""The CUDA context, libraries' workspaces, communicators: beside weights and cache, whatever the model."""
_MASTER, _GRADIENT, _MOMENTS = 4, 4, 8
"""Bytes per parameter that `clawrl.training.optimizer` has in float32: the copy it updates, gradients, two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """GiB per GPU. ``problem`` follows the path of the part, as in ``policy``, and names a field below it."""

    needed: float
    available: float
    problem: str | None = None

    @property
    def words(self) -> str:
        return f"{self.needed:.1f} of {self.available:.1f} GiB"


def engine_budget(engine: EngineConfig, gib: float, num_gpus: float) -> float:
    """What of a GPU the engine may fill: its share, and of that what SGLang is told to take at most."""
    share = gib * min(1.0, num_gpus)
    return share * engine.sglang.memory_fraction if engine.kind == "sglang" else share


def fit_engine(shape: Architecture, engine: EngineConfig, *, gib: float, num_gpus: float, gpu: str) -> Fit:
    """``gpu`` is what to call the thing of ``gib`` GiB in a sentence."""
    budget = engine_budget(engine, gib, num_gpus)
    weights = parameters(shape) * DTYPE_BYTES[engine.dtype] / engine.tp_size / GIB
    per_token = kv_bytes_per_token(shape, engine.dtype, engine.tp_size) / GIB
    tokens = engine.kv_blocks * engine.page_size
    needed = weights + tokens * per_token + RESERVE_GIB
    if needed <= budget:
        return Fit(needed=needed, available=budget)
    blocks = int((budget - weights - RESERVE_GIB) / (per_token * engine.page_size))
    bigger = "memory_fraction" if engine.kind == "sglang" else "the share in resources.num_gpus"
    found = (
        f"the engine needs {needed:.1f} GiB of each GPU (weights {weights:.1f}, cache of {tokens} tokens "
        f"{tokens * per_token:.1f}, reserve {RESERVE_GIB:.1f}), but may fill {budget:.1f} of {gpu}"
    )
    if blocks * engine.page_size >= engine.context_length:
        problem = f"engine.kv_blocks: {found}; set it to {blocks} or less, or raise tp_size or {bigger}"
    else:
        # Fewer blocks would not hold even one request.
        wider = "engine.tp_size and resources.num_gpus" if engine.kind == "sglang" else "the GPU"
        problem = (
            f"engine.context_length: {found}, and one request of {engine.context_length} tokens does not fit it "
            f"either; lower context_length and kv_blocks, take a larger {wider}, or a smaller model"
        )
    return Fit(needed=needed, available=budget, problem=problem)


def trainer_bytes(
    shape: Architecture,
    dtype: str,
    world_size: int,
    *,
    reference: bool = False,
    adapters: bool = False,
    offload: bool = False,
) -> float:
    """The least that each rank holds on its GPU between two steps. ``reference`` is a second, frozen copy.

    With ``adapters`` only the frozen weights count, which are nearly all of it; with ``offload`` all else is in host
    memory.
    """
    weight = DTYPE_BYTES[dtype]
    if adapters or offload:
        return parameters(shape) * weight * (1 + reference) / world_size
    # A float32 weight that is not sharded is its own master.
    master = 0 if weight == _MASTER and world_size == 1 else _MASTER
    each = weight + master + _GRADIENT + _MOMENTS + weight * reference
    return parameters(shape) * each / world_size


def fit_trainer(
    shape: Architecture,
    dtype: str,
    world_size: int,
    *,
    reference: bool,
    adapters: bool = False,
    offload: bool = False,
    gib: float,
    num_gpus: float,
    gpu: str,
) -> Fit:
    available = gib * min(1.0, num_gpus)
    needed = trainer_bytes(shape, dtype, world_size, reference=reference, adapters=adapters, offload=offload) / GIB
    if needed <= available:
        return Fit(needed=needed, available=available)
    held, less = "weights, gradients and Adam's state", "set offload_optimizer, raise fsdp_size or tp_size"
    if adapters or offload:
        held, less = "the frozen weights" if adapters else "the weights", "raise fsdp_size or tp_size"
    problem = (
        f"training.fsdp_size: {held} alone need {needed:.1f} GiB on each of {world_size} "
        f"GPUs, but there are {available:.1f} of {gpu}; {less}, or take a smaller model"
    )
    return Fit(needed=needed, available=available, problem=problem)
