"""What one replica or rank reserves from Ray, and on which GPU."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from clawrl.sizing.gpus import GIB, gpu_gib
from clawrl.strict import StrictConfig


class Resources(StrictConfig):
    """CPUs are shares for the scheduler, not a limit on threads. All of it, GPUs included, is of one node.

    ``accelerator_type`` is Ray's name of the GPU and keeps replicas on nodes that have it. Ray finds most names by
    itself, but calls every A100 just that: A100-40G and A100-80G need nodes that were started under that name.
    """

    num_cpus: float = Field(0.0, ge=0.0, description="share that Ray's scheduler sets aside; no limit on threads")
    num_gpus: float = Field(0.0, ge=0.0, description="GPUs of one node")
    accelerator_type: str | None = Field(
        None, description="Ray's name of the GPU, such as H100; keeps it on nodes that have it"
    )
    gpu_memory_gib: float | None = Field(None, gt=0.0, description="of one GPU; goes before what its type says")
    custom: dict[str, float] = Field(
        default_factory=dict,
        description="of the names that nodes were given with `ray start --resources`; what autoscales names other ones "
        "than the trainer, or its replicas may take the trainer's place",
    )

    @model_validator(mode="after")
    def _says_which_gpu_only_if_it_has_one(self) -> Resources:
        for field in ("accelerator_type", "gpu_memory_gib"):
            if not self.num_gpus and getattr(self, field) is not None:
                raise ValueError(f"{field} is of GPUs, but num_gpus is 0; set num_gpus, or remove {field}")
        if self.accelerator_type is not None and self.gpu_gib is None:
            raise ValueError(
                f"accelerator_type {self.accelerator_type!r} is unknown; use one of {', '.join(GIB)}, or say with "
                "gpu_memory_gib how large it is"
            )
        return self

    @property
    def gpu_gib(self) -> float | None:
        return gpu_gib(self.accelerator_type, self.gpu_memory_gib)

    def ray_options(self) -> dict[str, Any]:
        """As ``ray_actor_options`` of a Serve deployment."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.accelerator_type is not None:
            options["accelerator_type"] = self.accelerator_type
        if self.custom:
            options["resources"] = dict(self.custom)
        return options
