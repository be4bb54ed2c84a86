"""GPUs by Ray's names for them, with the memory that a program finds there.

Less than the number on the box: drivers and error correction take their part. The figures are rounded down. Where one
name stands for several sizes, the smallest counts; ``gpu_memory_gib`` says otherwise.
"""

from __future__ import annotations

GIB: dict[str, float] = {
    "T4": 14.5,
    "V100": 15.5,  # also sold with 32
    "A10G": 22.0,
    "L4": 22.0,
    "A100": 39.0,  # what Ray calls every A100 by itself; also sold with 80
    "A100-40G": 39.0,
    "L40S": 44.0,
    "A100-80G": 79.0,
    "H100": 79.0,
    "RTX-PRO-6000": 94.0,
    "H20": 95.0,
    "H200": 139.0,
    "B200": 178.0,
    "GB200": 184.0,
    "B300": 267.0,
    "GB300": 276.0,
}


def gpu_gib(accelerator_type: str | None, gpu_memory_gib: float | None) -> float | None:
    """The memory of one GPU, or None if nobody has said which it is."""
    if gpu_memory_gib is not None:
        return gpu_memory_gib
    return GIB.get(accelerator_type) if accelerator_type is not None else None


def gpu_words(accelerator_type: str | None, gib: float) -> str:
    """For "so much of ..."."""
    return f"a GPU's {gib:g} GiB" + (f" ({accelerator_type})" if accelerator_type else "")
