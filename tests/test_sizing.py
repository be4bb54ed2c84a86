"""What a model takes, counted by arithmetic and held against real tiny models; what a GPU has; whether the two fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.util.accelerators import accelerators as rays_names
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from clawrl.engine.config import EngineConfig
from clawrl.models import ModelConfig, on_this_machine
from clawrl.sizing import fit
from clawrl.sizing.architecture import (
    Architecture,
    UnknownArchitecture,
    cut_problem,
    kv_bytes_per_token,
    parameters,
    read_architecture,
)
from clawrl.sizing.fit import fit_engine, fit_trainer, trainer_bytes
from clawrl.sizing.gpus import GIB
from clawrl.sizing.known import KNOWN
from clawrl.sizing.lookup import find_architecture, find_heads
from clawrl.training.optimizer import MasterAdamW

TINY = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
QWEN = KNOWN["Qwen/Qwen3-4B"]


def tiny_config(family: str, **settings: Any) -> PretrainedConfig:
    return AutoConfig.for_model(family, **TINY, **settings)


def shape_of(config: PretrainedConfig) -> Architecture:
    return read_architecture(json.loads(config.to_json_string()))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"head_dim": 16}),
        ("llama", {"head_dim": 12, "attention_bias": True, "mlp_bias": True}),
        ("mistral", {"head_dim": 16}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16, "attention_bias": True}),
    ],
)
def test_the_parameters_are_those_of_the_real_model(family: str, settings: dict[str, Any], tied: bool) -> None:
    config = tiny_config(family, tie_word_embeddings=tied, **settings)
    model = AutoModelForCausalLM.from_config(config)
    assert parameters(shape_of(config)) == sum(parameter.numel() for parameter in model.parameters())


def test_the_cache_of_a_token_is_what_the_real_model_caches() -> None:
    config = tiny_config("qwen3", head_dim=16)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    cache = model(torch.arange(7)[None], use_cache=True).past_key_values
    held = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert 7 * kv_bytes_per_token(shape_of(config), "float32") == held
    assert kv_bytes_per_token(shape_of(config), "bfloat16") * 2 == kv_bytes_per_token(shape_of(config), "float32")


def test_more_gpus_share_the_cache_until_each_has_one_head() -> None:
    whole = kv_bytes_per_token(QWEN, "bfloat16")
    assert whole == 2 * 36 * 8 * 128 * 2
    assert [kv_bytes_per_token(QWEN, "bfloat16", tp) * 8 // whole for tp in (2, 4, 8, 16)] == [4, 2, 1, 1]


@pytest.mark.parametrize(
    ("name", "total", "without_embeddings"),
    [
        ("Qwen/Qwen3-0.6B", 0.6, 0.44),
        ("Qwen/Qwen3-1.7B", 1.7, 1.4),
        ("Qwen/Qwen3-4B", 4.0, 3.6),
        ("Qwen/Qwen3-4B-Thinking-2507", 4.0, 3.6),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.0, 3.6),
        ("Qwen/Qwen3-8B", 8.2, 6.95),
        ("Qwen/Qwen3-14B", 14.8, 13.2),
        ("Qwen/Qwen3-32B", 32.8, 31.2),
    ],
)
def test_a_known_models_shape_gives_the_billions_that_its_makers_name(
    name: str, total: float, without_embeddings: float
) -> None:
    shape = KNOWN[name]
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    assert parameters(shape) / 1e9 == pytest.approx(total, abs=0.051)
    assert (parameters(shape) - embeddings) / 1e9 == pytest.approx(without_embeddings, abs=0.051)


def test_the_table_has_the_models_it_promises_and_nothing_untested() -> None:
    assert len(KNOWN) == 8
    assert KNOWN["Qwen/Qwen3-4B-Thinking-2507"].context == 262_144 and KNOWN["Qwen/Qwen3-4B"].context == 40_960


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "qwen3_moe"}, "type 'qwen3_moe' are not counted"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"hidden_size": None}, "cannot be read"),
        ({"num_attention_heads": 0, "head_dim": None}, "cannot be read"),
    ],
)
def test_of_what_it_cannot_count_it_says_so(changes: dict[str, Any], why: str) -> None:
    content = json.loads(tiny_config("qwen3").to_json_string()) | changes
    with pytest.raises(UnknownArchitecture, match=why):
        read_architecture(content)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "linear", "factor": 2.0}, 256),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}, 128),
    ],
)
def test_a_scaled_rotary_embedding_adds_positions(scaling: dict[str, Any], context: int) -> None:
    content = {"model_type": "llama", **TINY}
    assert read_architecture(content | {"rope_parameters": scaling}).context == context
    assert read_architecture(content | {"rope_scaling": scaling}).context == context


def test_an_engine_may_repeat_a_key_value_head_but_not_cut_one() -> None:
    assert [cut_problem(QWEN, tp) for tp in (1, 2, 4, 8, 16, 32)] == [None] * 6
    assert "32 attention heads" in (cut_problem(QWEN, 3) or "")
    nine = Architecture(
        family="llama", hidden=576, intermediate=1, layers=1, heads=12, kv_heads=6, head_dim=64, vocab=1, tied=True,
        context=0,
    )  # fmt: skip
    assert "6 key/value heads" in (cut_problem(nine, 4) or "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trainers_bytes_are_those_of_the_real_optimizer_before_its_step(dtype: str) -> None:
    config = tiny_config("qwen3", head_dim=16, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    optimizer = MasterAdamW(
        model.named_parameters(), learning_rate=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1, max_grad_norm=1.0
    )
    for _ in range(2):
        model(torch.arange(9)[None]).logits.float().sum().backward()
        optimizer.collect()
        moments = [t for state in optimizer._adam.state.values() for t in state.values() if t.ndim]
        gradients = [master.grad for master in optimizer.masters.values() if master.grad is not None]
        optimizer.step(1.0)
    held = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *optimizer.masters.values(), *moments, *gradients)}
    shape = shape_of(config)
    assert trainer_bytes(shape, dtype, 1) == sum(held.values())
    assert trainer_bytes(shape, dtype, 1, reference=True) == sum(held.values()) + sum(
        parameter.nbytes for parameter in model.parameters()
    )


def test_a_sharded_float32_weight_has_a_master_of_its_own() -> None:
    assert trainer_bytes(QWEN, "float32", 1) == parameters(QWEN) * 16
    assert trainer_bytes(QWEN, "float32", 4) == parameters(QWEN) * 20 / 4


def test_what_is_advised_instead_of_too_large_a_cache_fits_and_one_block_more_does_not() -> None:
    def sized(blocks: int) -> fit.Fit:
        engine = EngineConfig(kind="sglang", context_length=32_768, kv_blocks=blocks, tp_size=2)
        return fit_engine(QWEN, engine, gib=79.0, num_gpus=2, gpu="a GPU's 79 GiB (H100)")

    problem = sized(10_000).problem or ""
    assert problem.startswith(
        "engine.kv_blocks: the engine needs 180.5 GiB of each GPU (weights 3.7, cache of 2560000 "
    )
    assert "may fill 67.1 of a GPU's 79 GiB (H100)" in problem
    advised = int(problem.split("set it to ")[1].split(" ")[0])
    assert sized(advised).problem is None and sized(advised + 1).problem is not None
    assert sized(1024).words == "22.7 of 67.1 GiB"


def test_a_gpu_that_cannot_hold_one_request_is_not_blamed_on_the_cache() -> None:
    engine = EngineConfig(kind="sglang", context_length=32_768, kv_blocks=128)
    problem = fit_engine(KNOWN["Qwen/Qwen3-8B"], engine, gib=22.0, num_gpus=1, gpu="a GPU's 22 GiB (L4)").problem
    assert problem and problem.startswith("engine.context_length: ") and "one request of 32768 tokens" in problem


def test_sglang_may_fill_its_fraction_of_a_gpu_and_transformers_its_share() -> None:
    sglang = EngineConfig.model_validate({"kind": "sglang", "sglang": {"memory_fraction": 0.5}})
    assert fit.engine_budget(sglang, 80.0, 1) == 40.0
    assert fit.engine_budget(EngineConfig(), 80.0, 0.25) == 20.0
    assert fit.engine_budget(EngineConfig(), 80.0, 1) == 80.0


def test_a_trainer_is_refused_only_when_its_state_alone_is_too_much() -> None:
    def sized(world_size: int, *, reference: bool = False) -> fit.Fit:
        words = {"gib": 79.0, "num_gpus": 1.0, "gpu": "a GPU's 79 GiB (H100)"}
        return fit_trainer(KNOWN["Qwen/Qwen3-8B"], "bfloat16", world_size, reference=reference, **words)

    assert sized(2).problem is None and sized(2).words == "68.7 of 79.0 GiB"
    alone = sized(1).problem or ""
    assert alone.startswith(
        "training.fsdp_size: weights, gradients and Adam's state alone need 137.3 GiB on each of 1 "
    )
    assert sized(2, reference=True).words == "76.3 of 79.0 GiB"


def test_a_trainer_of_adapters_holds_the_weights_once() -> None:
    shape = KNOWN["Qwen/Qwen3-8B"]
    assert trainer_bytes(shape, "bfloat16", 2, reference=True, adapters=True) == 2 * parameters(shape)
    small: dict[str, Any] = {"reference": False, "num_gpus": 1.0, "gpu": "a GPU's 22 GiB (L4)"}
    assert fit_trainer(shape, "bfloat16", 1, adapters=True, gib=22.0, **small).words == "15.3 of 22.0 GiB"
    problem = fit_trainer(shape, "bfloat16", 1, adapters=True, gib=14.5, **small).problem or ""
    assert problem.startswith("training.fsdp_size: the frozen weights alone need 15.3 GiB on each of 1 GPUs")


def test_half_a_gpu_holds_half_a_trainer() -> None:
    words: dict[str, Any] = {"reference": False, "gib": 80.0, "gpu": "a GPU's 80 GiB"}
    assert fit_trainer(QWEN, "bfloat16", 1, num_gpus=1.0, **words).problem is None
    assert fit_trainer(QWEN, "bfloat16", 1, num_gpus=0.5, **words).problem is not None


def test_every_gpu_in_the_table_has_rays_own_name() -> None:
    rays = {value for name, value in vars(rays_names).items() if name.startswith("NVIDIA_")}
    assert GIB.keys() <= rays, GIB.keys() - rays


def test_a_folder_here_goes_before_the_table_and_a_broken_one_is_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(tiny_config("qwen3").to_json_string())
    here = ModelConfig(source=str(tmp_path))
    assert find_architecture(here).hidden == 48 and find_heads(here) == (4, 2)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UnknownArchitecture, match=r"config\.json"):
            find_architecture(here)
        assert find_heads(here) is None
    (tmp_path / "config.json").write_text('{"model_type": "x", "text_config": {"num_attention_heads": 6}}')
    assert find_heads(here) == (6, 6)


def test_the_hubs_cache_goes_before_the_table_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = ModelConfig(source="Qwen/Qwen3-4B")
    assert on_this_machine(model) is None and find_architecture(model) == KNOWN["Qwen/Qwen3-4B"]
    assert find_heads(model) == (32, 8)
    with pytest.raises(UnknownArchitecture, match="not on this machine, nor in clawrl's table"):
        find_architecture(ModelConfig(source="nobody/has-this"))
    repository = tmp_path / "models--Qwen--Qwen3-4B"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(tiny_config("qwen3").to_json_string())
    assert on_this_machine(model) == snapshot and find_architecture(model).hidden == 48


def test_a_wheel_is_known_once_it_was_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_CACHE", str(tmp_path))
    model = ModelConfig(source="pypi:some-model==1.0", gguf_file="m.gguf", sha256="ab" * 32)
    assert on_this_machine(model) is None
    folder = tmp_path / "models" / "some-model-1.0-abababababab"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(tiny_config("llama").to_json_string())
    assert on_this_machine(model) == folder


@pytest.mark.parametrize("source", ["/no/such/folder", "./nothing", "~/nothing", "a//b//c"])
def test_a_path_that_leads_nowhere_is_not_looked_for_in_the_hubs_cache(source: str) -> None:
    assert on_this_machine(ModelConfig(source=source)) is None
