"""The shape of a dense transformer, and what follows from it: parameters, bytes of cache per token, how it may be cut.

Four families are understood, all of the same plan: attention with grouped keys and values, a gated MLP, RMS norms. The
counts are exact for them. Of anything else no figure is given rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


class UnknownArchitecture(ValueError):
    """Nothing certain can be said of this model; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """``context`` is how many positions the model was made for; 0 means that its config.json does not say."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


def parameters(shape: Architecture) -> int:
    """All of them, a tied output projection counted once."""
    embedding = shape.vocab * shape.hidden
    return embedding * (1 if shape.tied else 2) + shape.layers * _layer(shape) + shape.hidden


def _layer(shape: Architecture) -> int:
    query, kv, hidden, inner = shape.query_width, shape.kv_width, shape.hidden, shape.intermediate
    attention = hidden * (query + 2 * kv) + query * hidden
    attention += (query + 2 * kv) * shape.qkv_bias + hidden * shape.output_bias
    if shape.family == "qwen3":
        # A norm of its own for queries and for keys, shared by all heads.
        attention += 2 * shape.head_dim
    mlp = 3 * hidden * inner + (2 * inner + hidden) * shape.mlp_bias
    return attention + mlp + 2 * hidden


def kv_bytes_per_token(shape: Architecture, dtype: str, tp_size: int = 1) -> int:
    """On each of ``tp_size`` GPUs. A GPU holds at least one head, so beyond ``kv_heads`` GPUs the cache is repeated."""
    heads = max(1, shape.kv_heads // tp_size)
    return 2 * shape.layers * heads * shape.head_dim * DTYPE_BYTES[dtype]


def cut_problem(shape: Architecture, tp_size: int) -> str | None:
    """Why an engine cannot split the heads over ``tp_size`` GPUs. It may repeat a key/value head, but not cut one."""
    if shape.heads % tp_size:
        return f"does not divide the model's {shape.heads} attention heads"
    if shape.kv_heads % tp_size and tp_size % shape.kv_heads:
        return f"neither divides the model's {shape.kv_heads} key/value heads nor is a multiple of them"
    return None


def check_heads(heads: int, kv_heads: int, tp_size: int) -> None:
    """Refuse a tensor-parallel size that a trainer cannot use: it shards key/value heads too and repeats none."""
    for what, count in (("attention heads", heads), ("key/value heads", kv_heads)):
        if count % tp_size:
            fitting = [size for size in range(1, heads + 1) if heads % size == 0 and kv_heads % size == 0]
            raise ValueError(
                f"tp_size {tp_size} does not divide the model's {count} {what}; it can be one of {fitting}"
            )


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Off the content of a config.json. Raises `UnknownArchitecture`."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnknownArchitecture(f"architectures of type {family!r} are not counted, only {', '.join(FAMILIES)}")
    if config.get("quantization_config"):
        raise UnknownArchitecture("its weights are quantised, which is not counted")
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        bias = family in ("llama", "qwen3") and bool(config.get("attention_bias", False))
        return Architecture(
            family=family,
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab=int(config["vocab_size"]),
            # Each family's own default, where a file leaves it out.
            tied=bool(config.get("tie_word_embeddings", False)),
            context=_context(config),
            # Qwen2 has these three biases and no setting for them.
            qkv_bias=bias or family == "qwen2",
            output_bias=bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UnknownArchitecture(f"its config.json cannot be read: {error!r}") from None


def _context(config: Mapping[str, Any]) -> int:
    """Positions, those included that a scaled rotary embedding adds."""
    made_for = int(config.get("max_position_embeddings") or 0)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    factor = float(scaling.get("factor") or 1.0)
    origin = int(scaling.get("original_max_position_embeddings") or made_for)
    return max(made_for, int(origin * factor))
