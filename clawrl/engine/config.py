"""How an engine runs a model. One class for the policy and the judge."""

import sys
from collections.abc import Collection, Mapping
from typing import Literal

from pydantic import Field, model_validator

from clawrl.strict import StrictConfig

_ENV = "env:"
_SGLANG_TARGETS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


class SglangConfig(StrictConfig):
    """SGLang runs as a child of its replica, in an interpreter of its own if need be (docs/install.md)."""

    python: str = Field(
        "",
        description="the interpreter that has sglang, or env:VARIABLE that names it; empty: the one that runs clawrl",
    )
    pause_mode: Literal["retract", "in_place"] = Field(
        "retract",
        description="what becomes of running requests when weights change: retract computes their prefixes anew under "
        "the new weights; in_place keeps what the old ones computed, for a shorter hold, and so is not exact. (A third "
        "mode of SGLang's, abort, ends answers.)",
    )
    memory_fraction: float = Field(0.85, gt=0.0, lt=1.0, description="of a GPU, for weights and cache")
    boot_timeout_s: float = Field(
        600.0, gt=0.0, description="seconds that SGLang may take to start, its model's load included"
    )
    extra_args: tuple[str, ...] = Field((), description="further flags of sglang.launch_server")
    env: dict[str, str] = Field(default_factory=dict, description="added to the environment of the child")

    def interpreter(self, environ: Mapping[str, str]) -> str:
        """Its path. Raises `ValueError` where a variable is named that is not set."""
        if not self.python.startswith(_ENV):
            return self.python or sys.executable
        name = self.python.removeprefix(_ENV)
        if not environ.get(name):
            raise ValueError(f"python is {self.python!r}, but the environment variable {name!r} is not set")
        return environ[name]


class EngineConfig(StrictConfig):
    """``kv_blocks * page_size`` tokens fit the cache at once; requests beyond that wait their turn."""

    kind: Literal["transformers", "sglang"] = Field(
        "transformers",
        description="transformers: in the replica's process, on one device; sglang: a child process, for GPUs",
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto",
        description="auto: the GPU that this process sees (a replica's num_gpus), else the CPU; for sglang it is cuda",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="of weights and activations; the policy's must equal trainer.training.dtype"
    )
    context_length: int = Field(2048, gt=0, description="prompt + response tokens of one request")
    max_running_requests: int = Field(8, gt=0, description="requests that one replica computes at once; others wait")
    kv_blocks: int = Field(64, gt=0, description="blocks of the cache; kv_blocks * page_size tokens fit at once")
    page_size: int = Field(256, ge=16, description="tokens in one block of the cache")
    max_batch_tokens: int = Field(
        256, gt=0, description="tokens in one forward pass; bounds a prefill's hold on others"
    )
    score_batch_tokens: int = Field(4096, gt=0, description="padded tokens in one scoring pass")
    threads: int = Field(2, gt=0, description="CPU threads of torch in this process")
    tp_size: int = Field(1, gt=0, description="GPUs that share one engine")
    seed: int | None = Field(None, description="of the sampling; null takes another one each time")
    sglang: SglangConfig = Field(SglangConfig(), description="for kind: sglang only")

    @model_validator(mode="after")
    def _settings_are_for_this_kind(self) -> "EngineConfig":
        # By value: a configuration that was written out and read back has every field set.
        if self.kind != "sglang" and self.sglang != SglangConfig():
            raise ValueError("the settings under sglang are for kind: sglang; remove them or set that kind")
        return self

    def why_no_adapters(self, targets: Collection[str]) -> str | None:
        """Why this engine cannot take adapters on these linear layers, if it cannot."""
        if self.kind != "sglang":
            return None
        if others := sorted(set(targets) - {target for group in _SGLANG_TARGETS for target in group}):
            return f"SGLang is not known to take adapters on {', '.join(others)}"
        # It computes these as one layer.
        for group in _SGLANG_TARGETS:
            if missing := sorted(set(group) - set(targets) if set(group) & set(targets) else ()):
                return f"SGLang takes adapters on all of {', '.join(group)} or on none, and {', '.join(missing)} lacks"
        return None

    @property
    def on_gpu(self) -> bool:
        """Whether SGLang runs on GPUs."""
        return self.kind == "sglang" and self.device != "cpu"

    @model_validator(mode="after")
    def _cache_holds_one_request(self) -> "EngineConfig":
        if self.kv_blocks * self.page_size < self.context_length:
            raise ValueError(
                f"the cache holds kv_blocks * page_size = {self.kv_blocks * self.page_size} tokens, fewer than "
                f"context_length = {self.context_length}; raise kv_blocks or lower context_length"
            )
        return self
