"""The models that are measured: shapes of known ones with random weights, and what a training step of them costs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from clawrl.engine.config import EngineConfig
from clawrl.sizing.architecture import read_architecture
from clawrl.sizing.training import training_flops
from tests.tiny_model import train_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model, and of the work it is measured with: ``samples`` rows of ``prompt + response`` train."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    spread: float
    dtype: str
    samples: int
    prompt: int
    response: int
    micro_batch_tokens: int
    running: int
    context: int
    page: int
    batch_tokens: int

    @property
    def config(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=max(4096, self.context),
            initializer_range=self.spread,
            tie_word_embeddings=True,
        )

    def engine_config(self, device: str, dtype: str) -> EngineConfig:
        pages = self.running * -(-self.context // self.page)
        return EngineConfig(
            device=device,  # type: ignore[arg-type]
            dtype=dtype,  # type: ignore[arg-type]
            context_length=self.context,
            max_running_requests=self.running,
            kv_blocks=pages,
            page_size=self.page,
            max_batch_tokens=self.batch_tokens,
        )


_GPU = {"head_dim": 128, "kv_heads": 8, "vocabulary": 151936, "spread": 0.02, "dtype": "bfloat16"}
_WORK = {"samples": 16, "prompt": 512, "response": 512, "running": 64, "context": 512, "page": 256}
SHAPES = {
    "0.6b": Shape(
        hidden=1024,
        intermediate=3072,
        layers=28,
        heads=16,
        **_GPU,  # type: ignore[arg-type]
        **_WORK,
        micro_batch_tokens=8192,
        batch_tokens=2048,
    ),
    # Weights, gradients, float32 masters and moments take 80 GB; the rest of 140 holds a micro-batch this small.
    "4b": Shape(
        hidden=2560,
        intermediate=9728,
        layers=36,
        heads=32,
        **_GPU,  # type: ignore[arg-type]
        **_WORK,
        micro_batch_tokens=2048,
        batch_tokens=2048,
    ),
    "tiny": Shape(
        hidden=64,
        intermediate=128,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocabulary=512,
        spread=0.2,
        dtype="float32",
        samples=4,
        prompt=24,
        response=24,
        micro_batch_tokens=96,
        running=4,
        context=512,
        page=32,
        batch_tokens=64,
    ),
}


def make_folder(shape: Shape, folder: Path, device: torch.device) -> tuple[int, int, float]:
    """Write a random model and a small tokenizer; ``(parameters, bytes, seconds)``. Drawn on ``device``: it is fast."""
    began = time.perf_counter()
    tokenizer = train_tokenizer(400)
    tokenizer.save_pretrained(folder)
    config = shape.config
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
    model.save_pretrained(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return model.num_parameters(), size, time.perf_counter() - began


@torch.no_grad()
def draw_again(model: PreTrainedModel, shape: Shape, seed: int) -> None:
    """Other weights in the same places: a version to publish that differs everywhere."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, shape.spread, generator=generator)


def step_flops(shape: Shape, lengths: Sequence[int], predicted: int) -> float:
    """Forward and backward over rows of ``lengths`` tokens, ``predicted`` of which go through the vocabulary."""
    return training_flops(read_architecture(shape.config.to_dict()), lengths, predicted).total


# TFLOP/s, dense bf16 with float32 accumulation, from the vendors' data sheets; the first whose words the name has.
_PEAKS = {
    "B200": 2250,
    "H200": 989,
    "GH200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "RTX 4090": 165,
}


def peak_flops(device_name: str) -> float | None:
    found = (tera * 1e12 for name, tera in _PEAKS.items() if re.search(rf"\b{name}\b", device_name))
    return next(found, None)
