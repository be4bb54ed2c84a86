"""What a training step takes on each GPU, by arithmetic: bytes part by part, and floating-point operations.

Exact for parameters; for activations what PyTorch keeps between forward and backward pass, as `clawrl.training` runs
samples that share nothing. Allocators' waste, communicators and workspaces come on top. Tensor parallelism cuts all
matrices and what stands inside attention and MLP; norms and the residual stream are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clawrl.sizing.architecture import DTYPE_BYTES, Architecture, parameters

_WIDE = 4
"""Bytes of float32, in which norms, masters, moments and logits are computed."""
_LOGIT_BLOCKS = 3
_LOGIT_BLOCKS_WITH_ENTROPY = 4
"""Of one size at the peak of the backward pass: a block, the one before it, and what is made of them; for the entropy
log-probs and probabilities both. Half a block more or less is a 16-bit copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetting:
    """``lengths`` of the samples of one pass, ``predicted`` of whose tokens count; others as in `TrainingConfig`.

    ``entropy``: the loss asks for it, as the methods' ``entropy_coef`` does.
    """

    lengths: tuple[int, ...]
    predicted: int
    dtype: str = "bfloat16"
    tp_size: int = 1
    activation_checkpointing: bool = False
    offload_optimizer: bool = False
    logits_mb: int = 256
    entropy: bool = False

    @property
    def logit_blocks(self) -> int:
        return _LOGIT_BLOCKS_WITH_ENTROPY if self.entropy else _LOGIT_BLOCKS

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBytes:
    """On one GPU at the peak of a pass. ``gradients`` are those of the pass, ``sums`` the float32 ones of the batch.

    ``logits`` are the blocks that clawrl works on; ``whole_logits`` what they would be without blocks and shards.
    """

    weights: float
    gradients: float
    sums: float
    masters: float
    moments: float
    activations: float
    logits: float
    whole_logits: float
    offloaded: bool

    @property
    def on_gpu(self) -> float:
        held = self.weights + self.gradients + self.activations + self.logits
        return held if self.offloaded else held + self.sums + self.masters + self.moments


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlops:
    """Of all GPUs together, two for each multiply and add. ``again`` is computed twice to save memory."""

    body: float
    attention: float
    head: float
    again: float = 0.0

    @property
    def total(self) -> float:
        return self.body + self.attention + self.head + self.again


def rank_parameters(shape: Architecture, tp_size: int) -> float:
    """Of each tensor-parallel rank."""
    whole = shape.hidden * (2 * shape.layers + 1)
    if shape.family == "qwen3":
        whole += 2 * shape.head_dim * shape.layers
    if shape.output_bias or shape.mlp_bias:
        whole += shape.hidden * shape.layers * (shape.output_bias + shape.mlp_bias)
    return whole + (parameters(shape) - whole) / tp_size


def layer_bytes(shape: Architecture, dtype: str, tp_size: int = 1, *, mixed: bool = False) -> float:
    """Kept per token by one layer for its backward pass. ``mixed``: of a pass over samples of different lengths."""
    b = DTYPE_BYTES[dtype]
    # A norm keeps its input in float32, the normed input and one scale; what comes out is read by the next matrices.
    norms = 2 * ((_WIDE + b) * shape.hidden + _WIDE) + 2 * b * shape.hidden
    query, kv, heads = shape.query_width, shape.kv_width, shape.heads
    # Queries, keys, values, answers; what several calls of the kernel answered is put together once more.
    inner = b * ((2 + mixed) * query + 2 * kv) + _WIDE * heads
    if shape.family == "qwen3":
        inner += (_WIDE + b) * (query + kv) + _WIDE * (heads + shape.kv_heads)
    # Gate, its activation, up, and their product.
    inner += 4 * b * shape.intermediate
    return norms + inner / tp_size


def activation_bytes(shape: Architecture, setting: TrainingSetting) -> float:
    b = DTYPE_BYTES[setting.dtype]
    layer = layer_bytes(shape, setting.dtype, setting.tp_size, mixed=len(set(setting.lengths)) > 1)
    # The last norm with what comes out of it, the two tables of the rotary embedding, and the token ids.
    around = (_WIDE + 2 * b) * shape.hidden + _WIDE + 2 * b * shape.head_dim + 8
    kept = shape.layers * b * shape.hidden + layer if setting.activation_checkpointing else shape.layers * layer
    return setting.tokens * (kept + around)


def training_bytes(shape: Architecture, setting: TrainingSetting) -> TrainingBytes:
    held = rank_parameters(shape, setting.tp_size)
    b = DTYPE_BYTES[setting.dtype]
    whole_logits = setting.logit_blocks * _WIDE * shape.vocab * setting.predicted
    block = max(setting.logits_mb * 2**20, _WIDE * shape.vocab / setting.tp_size)
    own_master = b == _WIDE and setting.tp_size == 1 and not setting.offload_optimizer
    return TrainingBytes(
        weights=held * b,
        gradients=held * b,
        sums=held * _WIDE,
        masters=0.0 if own_master else held * _WIDE,
        moments=2 * held * _WIDE,
        activations=activation_bytes(shape, setting),
        logits=min(whole_logits / setting.tp_size, setting.logit_blocks * block),
        whole_logits=whole_logits,
        offloaded=setting.offload_optimizer,
    )


def training_flops(
    shape: Architecture,
    lengths: Sequence[int],
    predicted: int,
    *,
    activation_checkpointing: bool = False,
    logits_again: bool = False,
) -> TrainingFlops:
    """Forward and backward: 6 for each weight and token, and for each pair of which one token attends to the other.

    Of the embedding only its use as the projection counts, for the predicted tokens.
    """
    query, kv = shape.query_width, shape.kv_width
    matrices = shape.hidden * (2 * query + 2 * kv) + 3 * shape.hidden * shape.intermediate
    body = 6.0 * shape.layers * matrices * sum(lengths)
    # Causal: half of all pairs, with two products each.
    attention = 6.0 * shape.layers * query * sum(length**2 for length in lengths)
    head = 6.0 * shape.vocab * shape.hidden * predicted
    # A forward pass is a third.
    again = activation_checkpointing * (body + attention) / 3 + logits_again * head / 3
    return TrainingFlops(body=body, attention=attention, head=head, again=again)
