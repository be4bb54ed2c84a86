"""A method with somebody else's loss: ``trainer.loss: package.module:function``, ``(LossInputs) -> LossOutput``.

Samples, masks, columns and advantages stay the method's, so that the function finds in `LossInputs` what the method
would have found. A function that reads ``ref_logp_BT`` says so with an attribute, ``my_loss.needs_reference = True``;
without it the reference is there only if the method's ``kl_coef`` is above 0.
"""

from __future__ import annotations

from typing import Any

from clawrl.methods.base import LossInputs, LossOutput, Method
from clawrl.plugins import load


class _WithLoss:
    def __init__(self, method: Method, loss: Any, path: str) -> None:
        self._method = method
        self._loss = loss
        self._path = path

    @property
    def needs_reference(self) -> bool:
        return self._method.needs_reference or bool(getattr(self._loss, "needs_reference", False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def loss(self, inputs: LossInputs) -> LossOutput:
        output = self._loss(inputs)
        if not isinstance(output, LossOutput):
            raise TypeError(f"trainer.loss {self._path} returned {type(output).__name__}; return a LossOutput")
        return output


def with_loss(method: Method, path: str | None) -> Method:
    """``method``, with its loss replaced if ``path`` names one."""
    if path is None:
        return method
    replaced: Any = _WithLoss(method, load(path), path)
    return replaced  # type: ignore[no-any-return]
