"""The policy as a torch module: load it, sharded or not, and read its full weights back.

With a torch.distributed world of ``tp_size * fsdp_size`` ranks, transformers places the weights as DTensors and each
rank reads only its shard; with one rank nothing is sharded and no process group is needed. Every function here that
touches a sharded model is a collective: all ranks call it, in the same order.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig  # type: ignore[attr-defined]
from transformers.modeling_layers import GradientCheckpointingLayer

from clawrl.sizing.architecture import check_heads
from clawrl.training.lora import base_parameters, merged
from clawrl.training.shards import gather


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def check_parallel(model_config: PretrainedConfig, tp_size: int) -> None:
    """Refuse a tensor-parallel size that would cut an attention head in two."""
    text: Any = model_config.get_text_config()
    heads = text.num_attention_heads
    check_heads(heads, getattr(text, "num_key_value_heads", None) or heads, tp_size)


def load_model(
    folder: Path, *, dtype: torch.dtype, tp_size: int = 1, fsdp_size: int = 1, device: torch.device | None = None
) -> PreTrainedModel:
    """Load a causal LM from a plain folder. ``device`` places an unsharded model; a sharded one follows its mesh."""
    if world_size() != tp_size * fsdp_size:
        raise ValueError(f"tp_size {tp_size} * fsdp_size {fsdp_size} needs as many ranks, but there are {world_size()}")
    sharded = tp_size * fsdp_size > 1
    if sharded:
        check_parallel(AutoConfig.from_pretrained(folder, local_files_only=True), tp_size)
    # Sizes of 1 are accepted by transformers 5.24 too, with or without a process group, and shard nothing.
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        local_files_only=True,
        distributed_config=DistributedConfig(
            tp_size=tp_size,
            fsdp_size=fsdp_size,
            # Gradients of sixteen bits are added up over the ranks in float32.
            fsdp_mixed_precision=fsdp_size > 1 and dtype == torch.bfloat16,
        ),
    )
    if device is not None and not sharded:
        model.to(device)  # type: ignore[arg-type]
    # Dropout stays off while training: log-probs must be those of the engine.
    model.train(False)
    return model


def full_parameters(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter whole, as a fresh copy on the CPU, in ``named_parameters`` order; tied weights once.

    Adapters are not listed but added in: names, order, dtypes and shapes are those of the model without them. One
    tensor is gathered at a time. All ranks must exhaust the iterator together.
    """
    for name, parameter, adapted in base_parameters(model):
        whole = gather(parameter.detach())
        if adapted is not None:
            whole = merged(whole, adapted)
        yield name, whole.to("cpu", copy=True)


def reshard(model: torch.nn.Module) -> None:
    """Make FSDP gather weights anew at the next forward pass; must stand before any write to the weights.

    After a forward pass without a backward pass FSDP keeps some weights gathered, and would go on using that copy.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep only what goes into each layer, and compute the layer again in the backward pass."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"trainer.training.activation_checkpointing: {type(model).__name__} has no layers that can; set it to false"
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        # transformers looks at this flag of the layer itself. Its parts keep theirs, and so dropout stays off.
        layer.training = True
