"""Stands in for SGLang's package of CPU kernels, of which PyPI has no wheel.

SGLang imports it on every CPU start but calls next to nothing of it where the CPU has no AMX: what it does call is
here, in plain torch. Whatever else is asked for exists and raises when it is called, so that a gap is loud.
"""

import torch

__version__ = "0.0.0"


def assign_req_to_token_pool_cpu(rows, table, begin, end, slots, _width):
    """Note in row ``rows[i]`` of ``table`` which cache slots hold the tokens ``begin[i]:end[i]`` of a request."""
    taken = 0
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True):
        count = last - first
        table[row, first:last] = slots[taken : taken + count].to(table.dtype)
        taken += count


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for CPUs; see integrations/sglang_cpu")

    return absent


def _without_pinning(make):
    """SGLang asks for pinned host memory without looking; a torch without CUDA has none and would refuse."""

    def made(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return made


if not torch.cuda.is_available():
    for _name in ("tensor", "empty", "zeros", "ones", "full", "arange", "empty_like", "zeros_like", "empty_strided"):
        setattr(torch, _name, _without_pinning(getattr(torch, _name)))
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
