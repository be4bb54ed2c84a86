"""What a training step takes, counted by arithmetic and held against tiny models that really take one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from bench.train_table import table
from clawrl.loss import HeadRows, VocabularyHead
from clawrl.sizing.architecture import Architecture, parameters, read_architecture
from clawrl.sizing.known import KNOWN
from clawrl.sizing.training import (
    TrainingSetting,
    activation_bytes,
    rank_parameters,
    training_bytes,
    training_flops,
)
from clawrl.training.forward import PolicyReader
from clawrl.training.model import checkpoint_activations, load_model
from clawrl.training.tree import plant
from tests.tiny_model import build_tiny_model

QWEN = KNOWN["Qwen/Qwen3-4B"]
TOKENS = 64
HALF: dict[str, Any] = {"dtype": torch.float32, "tp_size": 2}


def tiny_config(family: str, **settings: Any) -> PretrainedConfig:
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return AutoConfig.for_model(family, **{**sizes, **heads, "max_position_embeddings": 128, **settings})


def shape_of(config: PretrainedConfig) -> Architecture:
    return read_architecture(json.loads(config.to_json_string()))


def kept_for_backward(model: PreTrainedModel, lengths: tuple[int, ...] = (TOKENS,)) -> int:
    """Bytes of all storages that autograd keeps, those of parameters apart, in one pass over these sequences."""
    reader = PolicyReader(model)
    assert not reader.plain
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # Held, so that no other comes to stand at its address.
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        reader._run(plant([np.arange(length) % 90 for length in lengths], share=False), 1)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", [(64,), (32, 32), (24, 40)])
def test_activations_are_what_a_pass_keeps_to_the_byte(family: str, dtype: str, lengths: tuple[int, ...]) -> None:
    config = tiny_config(family)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    setting = TrainingSetting(lengths=lengths, predicted=TOKENS, dtype=dtype)
    assert activation_bytes(shape_of(config), setting) == kept_for_backward(model, lengths)


def test_with_checkpointing_a_layer_keeps_its_input_and_one_layer_at_a_time_is_there_whole() -> None:
    config, deeper = tiny_config("qwen3"), tiny_config("qwen3", num_hidden_layers=4)
    kept, said = [], []
    for each in (config, deeper):
        model = AutoModelForCausalLM.from_config(each, dtype=torch.bfloat16)
        checkpoint_activations(model)
        kept.append(kept_for_backward(model))
        setting = TrainingSetting(lengths=(TOKENS,), predicted=TOKENS, activation_checkpointing=True)
        said.append(activation_bytes(shape_of(each), setting))
    assert said[1] - said[0] == kept[1] - kept[0] == TOKENS * 2 * 48
    without = TrainingSetting(lengths=(TOKENS,), predicted=TOKENS)
    one_layer = activation_bytes(shape_of(tiny_config("qwen3", num_hidden_layers=1)), without)
    assert said[0] == one_layer + 3 * TOKENS * 2 * 48


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_operations_are_those_that_torch_counts_which_looks_at_all_pairs(family: str) -> None:
    config = tiny_config(family)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    counter = FlopCounterMode(display=False)
    with counter:
        model(input_ids=(torch.arange(TOKENS) % 90)[None], use_cache=False).logits.sum().backward()
    said = training_flops(shape_of(config), [TOKENS], TOKENS)
    # The first layer's input is an embedding, and learning one multiplies nothing.
    assert counter.get_total_flops() == pytest.approx(said.body + 2 * said.attention + said.head, rel=0.01)
    assert said.total == said.body + said.attention + said.head


def test_what_is_computed_twice_is_a_forward_pass_more() -> None:
    once = training_flops(QWEN, [1000], 500)
    twice = training_flops(QWEN, [1000], 500, activation_checkpointing=True, logits_again=True)
    assert twice.total == pytest.approx(once.total * 4 / 3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_tensor_parallel_rank_has_as_many_parameters_as_said(tmp_path: Path, kind: str, tied: bool) -> None:
    folder = build_tiny_model(tmp_path / "model", kind=kind, tie_embeddings=tied)
    shape = read_architecture(json.loads((folder / "config.json").read_text()))
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        held = [p.to_local() if isinstance(p, DTensor) else p for p in load_model(folder, **HALF).parameters()]
    finally:
        dist.destroy_process_group()
    assert rank_parameters(shape, 2) == sum(parameter.numel() for parameter in held)
    assert rank_parameters(shape, 1) == parameters(shape)


def test_bytes_of_the_parts_follow_from_parameters_and_settings() -> None:
    setting = TrainingSetting(lengths=(8192,), predicted=8192, tp_size=4)
    found, held = training_bytes(QWEN, setting), rank_parameters(QWEN, 4)
    assert (found.weights, found.gradients) == (2 * held, 2 * held)
    assert (found.sums, found.masters, found.moments) == (4 * held, 4 * held, 8 * held)
    assert found.logits == 3 * 256 * 2**20 and found.whole_logits == 3 * 4 * 151_936 * 8192
    with_entropy = training_bytes(QWEN, replace(setting, entropy=True))
    assert with_entropy.logits == 4 * 256 * 2**20 and with_entropy.on_gpu - found.on_gpu == 256 * 2**20
    assert found.on_gpu == 20 * held + found.activations + found.logits
    offloaded = training_bytes(
        QWEN, TrainingSetting(lengths=(8192,), predicted=8192, tp_size=4, offload_optimizer=True)
    )
    assert offloaded.on_gpu == 4 * held + found.activations + found.logits
    alone = training_bytes(QWEN, TrainingSetting(lengths=(8,), predicted=8, dtype="float32"))
    assert alone.masters == 0.0 and alone.logits == alone.whole_logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("entropy", [False, True], ids=["logp", "logp and entropy"])
def test_as_many_blocks_of_logits_exist_at_the_peak_as_said(entropy: bool, dtype: torch.dtype) -> None:
    vocab, rows, width = 4_096, 256, 8
    block = 32 * 4 * vocab
    head = VocabularyHead(weight_VD=torch.randn(vocab, width, dtype=dtype), block_bytes=block)
    hidden = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    temperature, ids = torch.ones(rows), torch.zeros(rows, 1, dtype=torch.long)

    def step() -> None:
        of_rows = HeadRows(hidden, head, temperature)
        loss = of_rows.logps(ids).sum() + (of_rows.entropy().sum() if entropy else 0.0)
        loss.backward()

    step()
    most = _peak_bytes(step) / block
    setting = TrainingSetting(lengths=(rows,), predicted=rows, entropy=entropy)
    assert setting.logit_blocks - 1 < most < setting.logit_blocks + 0.6, f"{most:.2f} blocks"


def _peak_bytes(work: Callable[[], None]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    changes = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held, most = 0, 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        held += change.nbytes()
        most = max(most, held)
    return most


def test_the_table_shows_every_context_with_and_without_checkpointing() -> None:
    head, rule, *lines = table("Qwen/Qwen3-4B", 4, (8192, 32_768)).splitlines()
    assert head.count("|") == rule.count("|") == 6 and head.count("activation_checkpointing") == 2
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines}
    held = rank_parameters(QWEN, 4)
    assert [float(value) for value in rows["weights, bf16"]] == [round(2 * held / 2**30, 1)] * 4
    assert len({*rows["activations"]}) == 4 and len(rows) == 12
    assert [float(value) for value in rows["(logits, in blocks, with `entropy_coef`)"]] == [1.0] * 4
