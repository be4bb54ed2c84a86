"""What the ranks of one trainer tell each other. Every call is a collective: all ranks make it, in the same order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

T = TypeVar("T")


class Ranks:
    """With a world of one no process group is needed."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.world = world

    def from_rank_0(self, make: Callable[[], T]) -> T:
        """``make`` on rank 0 only; every rank gets its value."""
        if self.world == 1:
            return make()
        box: list[Any] = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        value: T = box[0]
        return value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


def limit_collectives(timeout_s: float) -> None:
    """No collective of any group waits longer for a rank; those made of a device mesh begin with half an hour."""
    if not dist.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        with warnings.catch_warnings():
            # A group without a backend that can be told has nobody to wait for either.
            warnings.simplefilter("ignore")
            c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
