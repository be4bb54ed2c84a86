"""A rank's own piece of a tensor, for DTensors and plain tensors alike. A plain tensor is its own piece."""

import torch
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
