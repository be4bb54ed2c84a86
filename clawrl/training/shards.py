"""A rank's own piece of a tensor, for DTensors and plain tensors alike. A plain tensor is its own piece."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's piece, sharing memory with ``tensor``."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(tensor: Tensor) -> Tensor:
    """The whole of it. A collective, if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut(whole: Tensor, like: torch.nn.Parameter) -> Tensor:
    """This rank's piece of ``whole`` where ``like`` lives. No collective: every rank has the same ``whole``."""
    whole = whole.to(like.device)
    if isinstance(like, DTensor):
        whole = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return local(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """The ranks that each see a part of a batch, and this one's place among them."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None


def data_parallel(model: torch.nn.Module) -> DataParallel:
    """FSDP's ranks, read off the parameters. Ranks that cut the same layers between them see the same part."""
    for parameter in model.parameters():
        if isinstance(parameter, DTensor) and "fsdp" in (parameter.device_mesh.mesh_dim_names or ()):
            mesh = parameter.device_mesh["fsdp"]
            return DataParallel(size=mesh.size(), rank=mesh.get_local_rank(), group=mesh.get_group())
    return DataParallel()
