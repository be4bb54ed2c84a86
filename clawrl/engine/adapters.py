"""The weights of a model that serves: whole ones, and low-rank adapters beside them if the engine was started for some.

A layer with an adapter computes W x + alpha/rank · B A x, as the trainer does: nothing is merged into W, so that no
publish of adapters writes to it, and an adapter too small for W's own dtype is not rounded away. Whole weights leave no
adapter: B becomes zero.

``base_digest`` names the whole weights that are held, as a manifest would; adapters are an addition to one digest only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from clawrl.messages import AdapterShape, TensorSpec, WeightManifest
from clawrl.weights.adapters import expected_adapters
from clawrl.weights.manifest import as_bytes, digest_of, spec_of

_NAME = "served"


class LiveWeights:
    def __init__(self, model: PreTrainedModel, shape: AdapterShape | None) -> None:
        """Puts adapters of ``shape`` that add nothing into ``model``."""
        self._weights = dict(model.named_parameters())
        self.whole = {name: spec_of(name, parameter) for name, parameter in self._weights.items()}
        self.shape = shape
        self.adapters: dict[str, TensorSpec] = {}
        self._adapters: dict[str, torch.nn.Parameter] = {}
        self._digest: str | None = None
        if shape is not None:
            self.adapters = {spec.name: spec for spec in expected_adapters(self.whole, shape)}
            self._adapters = _inject(model, shape)
            if self._adapters.keys() != self.adapters.keys():
                raise ValueError(f"adapters on {', '.join(shape.targets)} are not those that this model can have")
            self._clear()

    def base_digest(self) -> str:
        """Reads all weights the first time: they came from a folder that has no digest."""
        if self._digest is None:
            payloads = (as_bytes(parameter) for parameter in self._weights.values())
            self._digest = digest_of(list(self.whole.values()), payloads)
        return self._digest

    def install(
        self, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor] | None
    ) -> None:
        """Pointer swaps, no copy. ``base`` are the whole weights below adapters where others are held."""
        # Tied modules share the parameter and follow.
        if manifest.addition is None:
            _point(self._weights, tensors)
            self._clear()
            self._digest = manifest.digest
            return
        if base is not None:
            _point(self._weights, base)
            self._digest = manifest.addition.base_digest
        _point(self._adapters, tensors)

    def _clear(self) -> None:
        for name, parameter in self._adapters.items():
            if name.endswith(".lora_B.weight"):
                parameter.data = torch.zeros_like(parameter.data)


def _point(parameters: Mapping[str, torch.nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.data = tensors[name]


def _inject(model: PreTrainedModel, shape: AdapterShape) -> dict[str, torch.nn.Parameter]:
    # Not at the top: it takes a second, and most engines have no adapters.
    import peft

    settings = peft.LoraConfig(r=shape.rank, lora_alpha=shape.alpha, target_modules=list(shape.targets))  # type: ignore[arg-type]
    peft.inject_adapter_in_model(settings, model, _NAME)
    model.eval()
    model.requires_grad_(False)
    return {
        name.replace(f".{_NAME}.weight", ".weight"): parameter
        for name, parameter in model.named_parameters()
        if f".{_NAME}." in name
    }
