"""Low-rank adapters in a loaded model: W becomes W + alpha/rank · B A, and only A and B are trained.

The model keeps its class; `peft` wraps each linear layer that a target names. W is frozen. A starts from a seed, drawn
on the CPU in module order and so the same on every rank of every layout; B starts at zero. Both have the model's dtype,
like any weight here, and float32 masters in the optimizer.

What leaves the trainer are the adapters alone (`adapter_tensors`), for engines that hold the weights below them
(`base_tensors`), or whole weights under the model's own names, adapters added in (`base_parameters` says where), for
those that need not know that there are any. No publish writes to the model.

Adapters are put in after the model was sharded. FSDP does not know them: every rank holds them whole, and
`MasterAdamW.average_whole` makes one gradient of what the ranks found in their parts of the batch.

`Adapters.state_dict` has no adapter in it, as those are in the optimizer's masters. It says what they are an
addition to: the settings, and this rank's pieces of those base weights that a rewind changed. All others are in the
model's folder, so that it belongs into a model fresh from there.

Where the model without its adapters is the reference for KL, no rewind may change it: one to adapters, or to whole
weights that have theirs beside them, does not, and any other is refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import peft
import torch
import torch.distributed as dist
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import PreTrainedModel

from clawrl.messages import AdapterShape
from clawrl.training.config import LoraConfig
from clawrl.training.shards import cut, gather, local
from clawrl.weights.adapters import added

_NAME = "default"
_MOVED = "and that was replaced by whole weights in an earlier rewind; go back to a version from after that"


class Adapters:
    def __init__(self, model: PreTrainedModel, config: LoraConfig, seed: int) -> None:
        """Puts adapters into ``model``, which must have none."""
        _check_targets(model, config.targets)
        settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=list(config.targets))
        peft.inject_adapter_in_model(settings, model, _NAME)
        model.train(False)
        self._model = model
        self._config = config
        self._seed = seed
        self._changed: set[str] = set()
        with torch.no_grad():
            for name, whole in self.start():
                parameter = model.get_parameter(name)
                local(parameter).copy_(cut(whole, parameter))

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within it the model is what the adapters are added to: the start, unless a rewind brought other weights."""
        layers = [module for module in self._model.modules() if isinstance(module, LoraLayer)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def start(self) -> Iterator[tuple[str, Tensor]]:
        """The adapters as they are before the first step, whole, by parameter name."""
        generator = torch.Generator().manual_seed(self._seed)
        for name, module in self._model.named_modules():
            if isinstance(module, LoraLayer):
                a, b = module.lora_A[_NAME].weight, module.lora_B[_NAME].weight
                limit = a.shape[1] ** -0.5
                yield f"{name}.lora_A.{_NAME}.weight", torch.empty(a.shape).uniform_(-limit, limit, generator=generator)
                yield f"{name}.lora_B.{_NAME}.weight", torch.zeros(b.shape)

    @torch.no_grad()
    def rewind(self, weights: Mapping[str, Tensor], *, base_stays: bool = False) -> dict[str, Tensor]:
        """Take over whole ``weights``, by the model's own names, as the base. Returns the adapters to go on from.

        They are among ``weights`` under the names that they are published by, or else those of the start. Adapters
        without any other weight are an addition to the base as it is. All weights are there or nothing changes; with
        ``base_stays`` other whole weights than the base are refused with a `ValueError`, on all ranks.
        """
        published = {_published(name): name for name, _ in _adapters(self._model)}
        adapters = {name: weights[alone] for alone, name in published.items() if alone in weights}
        if adapters and (missing := sorted(published.keys() - weights.keys())):
            raise ValueError(f"the adapters to go back to lack {missing[0]} and {len(missing) - 1} more")
        base = {name: parameter for name, parameter, _ in base_parameters(self._model)}
        if adapters and not base.keys() & weights.keys():
            if self._on_any_rank(bool(self._changed)):
                raise ValueError(f"these adapters belong to the model as it came, {_MOVED}")
            return adapters
        if missing := sorted(base.keys() - weights.keys()):
            raise ValueError(f"the weights to go back to lack {missing[0]} and {len(missing) - 1} more")
        # Whole, so that all ranks find the same.
        others = [n for n, p in base.items() if base_stays and not _equal(gather(p.detach()), weights[n])]
        if others:
            raise ValueError(
                f"going back to these weights would change the reference for KL, which is the model that adapters are "
                f"added to: {others[0]} and {len(others) - 1} more differ, and no adapters of "
                f"{self._config.model_dump(mode='json')} lie beside them. To train from them all the same, `clawrl "
                "export` them, name the folder as policy.model.source and give the deployment another state_dir"
            )
        for name, parameter in base.items():
            mine = local(parameter)
            piece = cut(weights[name], parameter).to(mine.dtype)
            if not torch.equal(mine, piece):
                mine.copy_(piece)
                self._changed.add(name)
        return adapters or dict(self.start())

    def _on_any_rank(self, flag: bool) -> bool:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return flag
        found = torch.tensor(int(flag), device=next(self._model.parameters()).device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found)

    def state_dict(self) -> dict[str, Any]:
        """The live tensors, not a copy: write them out before the next step."""
        base = {name: local(p.detach()) for name, p, _ in base_parameters(self._model) if name in self._changed}
        return {"settings": self._config.model_dump(mode="json"), "base": base}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if strays := self._changed - state["base"].keys():
            raise RuntimeError(f"{min(strays)} is no longer what the model's folder has; restore into a fresh model")
        for name, parameter, _ in base_parameters(self._model):
            if name in state["base"]:
                local(parameter).copy_(state["base"][name])
        self._changed = set(state["base"])


def _equal(mine: Tensor, other: Tensor) -> bool:
    return torch.equal(mine, other.to(mine.device, mine.dtype))


def check_settings(config: LoraConfig | None, saved: Mapping[str, Any] | None) -> None:
    """Adapters mean nothing under another rank or alpha, or where there are none; ``saved`` is a `state_dict`."""
    now = config and config.model_dump(mode="json")
    then = saved and saved["settings"]
    if now != then:
        raise ValueError(
            f"trainer.training.lora is {now}, but the checkpoint was written with {then}; "
            "set it back, or start anew with another state_dir"
        )


def shape_of(config: LoraConfig) -> AdapterShape:
    return AdapterShape(rank=config.rank, alpha=config.alpha, targets=config.targets)


def adapter_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every adapter whole, as a fresh copy on the CPU, under the name that it is published by. A collective."""
    for name, parameter in _adapters(model):
        yield _published(name), gather(parameter.detach()).to("cpu", copy=True)


def base_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight whole and without its adapter, as a fresh copy on the CPU. A collective."""
    for name, parameter, _ in base_parameters(model):
        yield name, gather(parameter.detach()).to("cpu", copy=True)


def _adapters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    for name, parameter in model.named_parameters():
        if any(part in ("lora_A", "lora_B") for part in name.split(".")):
            yield name, parameter


def _published(name: str) -> str:
    return name.replace(f".{_NAME}.weight", ".weight")


def base_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, LoraLayer | None]]:
    """Every parameter but the adapters, with the name and in the order that it has in a model without adapters.

    With it comes the layer whose adapter is to be added to it, if there is one.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in model.named_parameters():
        path, _, kind = name.rpartition(".")
        owner, wrapped = path.removesuffix(".base_layer"), path.endswith(".base_layer")
        if wrapped and owner in layers:
            yield f"{owner}.{kind}", parameter, layers[owner] if kind == "weight" else None
        elif not any(part in ("lora_A", "lora_B") for part in path.split(".")):
            yield name, parameter, None


@torch.no_grad()
def merged(weight: Tensor, layer: LoraLayer) -> Tensor:
    """The whole ``weight`` with the layer's adapter added in float32, in ``weight``'s dtype. A collective."""
    a, b = gather(layer.lora_A[_NAME].weight), gather(layer.lora_B[_NAME].weight)
    return added(weight, a, b, layer.scaling[_NAME])


def _check_targets(model: PreTrainedModel, targets: tuple[str, ...]) -> None:
    # A weight that is also the embedding's would change there, too.
    embedding = model.get_input_embeddings().weight
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module.weight is not embedding
    }
    if unknown := [target for target in targets if target not in linear]:
        raise ValueError(
            f"trainer.training.lora.targets: the model has no linear layers {', '.join(unknown)} to adapt; "
            f"choose among {', '.join(sorted(linear))}"
        )
