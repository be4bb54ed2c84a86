"""AdamW with float32 master weights over plain tensors and DTensors alike, on the model's device or in host memory.

The optimizer works on local shards only: AdamW is element-wise, so no optimizer state is ever a DTensor. ``masters``
holds the shards by parameter name, with the collected gradients in their ``.grad``. A plain float32 parameter is its
own master; any other gets a float32 copy, and is rewritten from it after each step, so that updates smaller than the
parameter's resolution add up. Gradients of micro-batches are added in float32 too.

Order: per micro-batch ``collect()`` after ``backward()``; then ``average_whole()``, if there is anything that no
sharding looks after, and ``grad_norm()`` (collectives); then ``step(norm)`` or
``zero_grad()``. `state_dict` holds this rank's shards and restores bit by bit.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from clawrl.training.shards import cut, local

_ShardKey = tuple[DeviceMesh, tuple[int, ...]] | None


class MasterAdamW:
    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_grad_norm: float,
        offload: bool = False,
    ) -> None:
        self._parameters = {name: p for name, p in named_parameters if p.requires_grad}
        # Ranks speak to each other from where the model is.
        self._device = next(iter(self._parameters.values())).device
        self._max_grad_norm = max_grad_norm
        self.masters: dict[str, Tensor] = {name: _master(p, offload) for name, p in self._parameters.items()}
        # Norm scales and biases are not decayed: pulling them to zero shrinks activations, not complexity.
        matrices = [master for master in self.masters.values() if master.ndim >= 2]
        vectors = [master for master in self.masters.values() if master.ndim < 2]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=learning_rate,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            fused=True,
        )

    def collect(self) -> None:
        """Add the parameters' gradients to the masters' and free them."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            gradient, parameter.grad = _local_gradient(parameter), None
            master = self.masters[name]
            if master.grad is None:
                # The parameter has let go of it: no copy is needed where device and type are right.
                master.grad = gradient.to(master.device, torch.float32)
            else:
                master.grad += gradient.to(master.device)

    def average_whole(self) -> None:
        """Give all ranks one gradient for what each of them holds whole: the mean. A collective; before `grad_norm`.

        For parameters that no sharding looks after. It is what FSDP does with the others: each rank has seen its part
        of the batch.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        # Every pass, an idle one too, goes through all of them: a gradient is there on all ranks or on none.
        whole = [self.masters[name].grad for name, p in self._parameters.items() if not isinstance(p, DTensor)]
        gradients = [gradient for gradient in whole if gradient is not None]
        if gradients:
            flat = torch.cat([gradient.flatten() for gradient in gradients]).to(self._device)
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def grad_norm(self) -> float:
        """Global L2 norm over all ranks and shards, the same number on every rank; infinite if anything is not finite.

        A collective.
        """
        by_shard: dict[_ShardKey, list[Tensor]] = {}
        for name, parameter in self._parameters.items():
            gradient = self.masters[name].grad
            by_shard.setdefault(_shard_key(parameter), [])
            if gradient is not None:
                by_shard[_shard_key(parameter)].append(gradient)
        total = torch.zeros((), dtype=torch.float32, device=self._device)
        for key, gradients in by_shard.items():
            square = torch.nn.utils.get_total_norm(gradients).square().to(self._device) if gradients else 0.0 * total
            if key is not None:
                mesh, dims = key
                for dim in dims:
                    dist.all_reduce(square, group=mesh.get_group(dim))
            total += square
        norm = torch.where(torch.isfinite(total), total.sqrt(), torch.inf)
        # Replicated gradients could differ in their last bit; one number for all ranks makes their decisions one.
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        return float(norm)

    def step(self, norm: float) -> bool:
        """Clip by ``norm`` and update. A norm that is not finite is refused: no weight and no state changes."""
        if not math.isfinite(norm):
            self.zero_grad()
            return False
        scale = min(1.0, self._max_grad_norm / (norm + 1e-6))
        for master in self.masters.values():
            if master.grad is not None and scale < 1.0:
                master.grad *= scale
        self._adam.step()
        self._write_back()
        self.zero_grad()
        return True

    def zero_grad(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self.masters[name].grad = None

    def state_dict(self) -> dict[str, Any]:
        """The live tensors, not a copy: write them out before the next step."""
        return {
            "masters": dict(self.masters),
            "adam": self._adam.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore masters, moments, and through the masters the model's weights."""
        saved: dict[str, Tensor] = state["masters"]
        mine = {name: tuple(master.shape) for name, master in self.masters.items()}
        if mine != {name: tuple(master.shape) for name, master in saved.items()}:
            raise ValueError("the checkpoint's parameters are not this model's: another model or another sharding")
        for name, master in self.masters.items():
            master.copy_(saved[name])
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self._adam.param_groups]
        # The learning rate and its like come from today's configuration, not from the checkpoint; and by them torch
        # decides where the state belongs.
        groups = [old | new for old, new in zip(state["adam"]["param_groups"], settings, strict=True)]
        self._adam.load_state_dict({**state["adam"], "param_groups": groups})
        self._write_back()
        self.zero_grad()

    def rewind(self, weights: Mapping[str, Tensor]) -> None:
        """Take over whole ``weights``, one per parameter by name, and forget all moments."""
        if missing := sorted(self._parameters.keys() - weights.keys()):
            raise ValueError(f"the weights to go back to lack {missing[0]} and {len(missing) - 1} more")
        for name, parameter in self._parameters.items():
            self.masters[name].copy_(cut(weights[name], parameter))
        self._adam.state.clear()
        self._write_back()
        self.zero_grad()

    def _write_back(self) -> None:
        for name, parameter in self._parameters.items():
            # Measured: FSDP moves an unevenly cut shard to new storage on the first forward, so it is looked up anew.
            piece = local(parameter.detach())
            if piece.data_ptr() != self.masters[name].data_ptr():
                piece.copy_(self.masters[name])


def _master(parameter: torch.nn.Parameter, offload: bool) -> Tensor:
    piece = local(parameter.detach())
    device = torch.device("cpu") if offload else piece.device
    own = piece.dtype == torch.float32 and not isinstance(parameter, DTensor) and piece.device == device
    return piece if own else piece.to(device, torch.float32, copy=True)


def _local_gradient(parameter: torch.nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        # Measured: an untied embedding sharded by rows gets a replicated gradient.
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient.detach())


def _shard_key(parameter: torch.nn.Parameter) -> _ShardKey:
    if not isinstance(parameter, DTensor):
        return None
    dims = tuple(i for i, placement in enumerate(parameter.placements) if not isinstance(placement, Replicate))
    return (parameter.device_mesh, dims) if dims else None
