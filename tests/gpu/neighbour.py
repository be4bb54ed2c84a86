"""A second process on the same device that is handed the trainer's tensors. Imports torch only: it must start fast."""

from __future__ import annotations

import time
from typing import Any

import torch


def take_over(inbox: Any, outbox: Any) -> None:
    """Answer "ready"; then copy the tensors of one message into memory of its own and answer seconds and checksum, or
    what went wrong.

    The sender must keep its tensors until the answer is there: on a GPU only handles travel.
    """
    outbox.put("ready")
    try:
        handed: dict[str, torch.Tensor] = inbox.get()
        began = time.perf_counter()
        mine = {name: tensor.clone() for name, tensor in handed.items()}
        if next(iter(mine.values())).is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        outbox.put((seconds, checksum(mine)))
    except Exception as error:
        outbox.put(f"{type(error).__name__}: {error}")


def checksum(tensors: dict[str, torch.Tensor]) -> int:
    """Of all bits; exact, and made where the tensors are."""
    total = 0
    for tensor in tensors.values():
        words = tensor.detach().reshape(-1).view(torch.int16 if tensor.element_size() == 2 else torch.int32)
        total += int(words.sum(dtype=torch.int64))
    return total
