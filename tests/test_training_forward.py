"""One pass over many samples gives each of them what a pass of its own would: log-probs and gradients."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from clawrl.loss import HeadRows, LogitRows
from clawrl.messages import Sample
from clawrl.methods.combine_topk import CombineTopK, CombineTopKConfig
from clawrl.training import attention
from clawrl.training.attention import AttentionTree
from clawrl.training.batch import Row, make_micro_batches
from clawrl.training.config import TrainingConfig
from clawrl.training.forward import PolicyReader
from clawrl.training.model import load_model
from clawrl.training.policy_trainer import PolicyTrainer
from clawrl.training.shards import DataParallel
from clawrl.training.tree import Node, plant
from tests.tiny_model import build_tiny_model
from tests.training_samples import WORDS, make_sample, naive_logps, noise, taught, trainer_logps

torch.set_num_threads(1)
SIZES: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}


def session(name: str, turns: int = 5) -> list[Sample]:
    """Each turn's prompt is the one before it with its answer and a reply."""
    history = make_sample(name, 20, 0).prompt_ids
    made = []
    for turn in range(turns):
        sample = replace(make_sample(f"{name}{turn}", 1, 6 + turn, temperature=0.6 + 0.2 * turn), prompt_ids=history)
        made.append(sample)
        history = np.concatenate([history, sample.response_ids, make_sample(f"{name}-reply{turn}", 9, 0).prompt_ids])
    return made


def mixed() -> list[Sample]:
    return [*session("a"), *session("b", 2), make_sample("c", 12, 1), make_sample("d", 3, 20)]


def gemma2(cap: str) -> PreTrainedModel:
    """Its logits, or its attention, have a soft cap."""
    torch.manual_seed(0)
    caps = {"final_logit_softcapping": None, "attn_logit_softcapping": None} | {cap: 2.0}
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **caps, query_pre_attn_scalar=8, attn_implementation="eager")).eval()


def mistral(window: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)).eval()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tokens", [10_000, 60, 1])
def test_log_probs_of_packed_samples_are_those_of_a_step_by_step_loop(tmp_path: Path, kind: str, tokens: int) -> None:
    model = load_model(
        build_tiny_model(tmp_path / kind, kind=kind, tie_embeddings=kind != "qwen2"), dtype=torch.float32
    )
    samples = mixed()
    for block_bytes in (1, 2**30):
        for sample, logps in zip(samples, trainer_logps(model, samples, tokens, block_bytes=block_bytes), strict=True):
            np.testing.assert_allclose(logps, naive_logps(model, sample), atol=2e-5)


def test_logits_are_held_whole_only_where_they_fit_one_block(tmp_path: Path) -> None:
    model = load_model(build_tiny_model(tmp_path), dtype=torch.float32)
    for block_bytes, kind in ((1, HeadRows), (2**30, LogitRows)):
        reader = PolicyReader(model, block_bytes=block_bytes)
        rows = [Row(sample=make_sample("x", 4, 6), mask=np.ones(6, dtype=np.bool_), columns={}, advantage=0.0)]
        (batch,) = make_micro_batches(rows, reader.split(100, DataParallel()), torch.device("cpu"))
        assert type(reader.read(batch)._rows) is kind


def test_a_sliding_window_is_kept_along_every_path() -> None:
    model = mistral(window=11)
    reader = PolicyReader(model)
    assert not reader.plain
    samples = mixed()
    packed, wide = trainer_logps(model, samples), trainer_logps(mistral(window=1000), samples)
    for sample, logps in zip(samples, packed, strict=True):
        np.testing.assert_allclose(logps, naive_logps(model, sample), atol=2e-5)
    assert max(np.abs(a - b).max() for a, b in zip(packed, wide, strict=True)) > 1e-2


@pytest.mark.parametrize("window", [11, 1000])
def test_neighbours_of_one_length_that_share_nothing_attend_in_one_call(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, alone = mistral(window), [make_sample(name, 20 + (name in "gh"), 10) for name in "cdefgh"]
    samples = [*session("a", 3), *alone]
    sequences = [np.concatenate([sample.prompt_ids, sample.response_ids]) for sample in samples]
    runs = AttentionTree(plant(sequences).nodes, torch.device("cpu")).runs
    assert sorted(run.count for run in runs if len(run.path) == 1)[-1] > 1
    assert sum(run.count for run in runs) == len(plant(sequences).nodes) > len(runs)
    reader = PolicyReader(model)
    heads: list[int] = []
    assert not reader.plain
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, *a, **k: heads.append(len(query)) or attend(query, *a, **k),  # type: ignore[func-returns-value]
    )
    reader._run(plant(sequences), 1)
    assert heads == 2 * [run.count for run in runs]
    monkeypatch.undo()
    for sample, logps in zip(samples, trainer_logps(model, samples), strict=True):
        np.testing.assert_allclose(logps, naive_logps(model, sample), atol=2e-5)


@pytest.mark.parametrize("cap", ["final_logit_softcapping", "attn_logit_softcapping"])
def test_a_model_with_a_soft_cap_is_read_the_plain_way_and_said_to_be(
    cap: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = gemma2(cap)
    with caplog.at_level(logging.WARNING):
        assert PolicyReader(model).plain
    assert "Gemma2ForCausalLM is trained one sample per pass" in caplog.text
    samples = mixed()
    for sample, logps in zip(samples, trainer_logps(model, samples), strict=True):
        np.testing.assert_allclose(logps, naive_logps(model, sample), atol=2e-5)


def test_a_model_that_attends_in_ways_of_its_own_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that drops what it does not know on the way to the attention function."""
    model = load_model(build_tiny_model(tmp_path), dtype=torch.float32)
    assert not PolicyReader(model).plain
    layer = model.model.layers[1].self_attn
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *a, tree=None, **k: forward(*a, **(k | {"attention_mask": None})))
    assert PolicyReader(model).plain


def test_a_mask_that_is_only_named_is_the_mask() -> None:
    """What GPUs are told instead of a tensor."""
    nodes = plant([np.arange(20), np.concatenate([np.arange(20), [7, 7, 7]])]).nodes
    tree = AttentionTree(nodes, torch.device("cpu"))
    (first,), (block,) = tree.blocks(nodes[0], None), tree.blocks(nodes[1], None)
    assert isinstance(block.mask, Tensor) and first.mask is None
    assert torch.equal(causal_lower_right(3, 23)._materialize("cpu"), block.mask == 0)
    (named,) = AttentionTree(nodes, torch.device("cuda")).blocks(nodes[1], None)
    assert repr(named.mask) == repr(causal_lower_right(3, 23))


@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("window", [3, 11, 29, None])
def test_a_node_in_blocks_attends_as_it_does_in_one_and_so_do_the_gradients(
    window: int | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against all pairs of the tokens of one path, in float64."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 90, 40)
    sequences = [words[:23], np.concatenate([words[:23], [91] * 20]), np.concatenate([words[:23], [92] * 17]), words]
    forest = plant(sequences)
    assert max(len(node.path) for node in forest.nodes) > 1
    monkeypatch.setattr(attention, "ROWS", rows)
    shape = (1, 4, len(forest.ids_N), 8)
    query = torch.from_numpy(rng.normal(size=shape)).requires_grad_()
    key, value = (torch.from_numpy(rng.normal(size=(1, 2, *shape[2:]))).requires_grad_() for _ in range(2))
    tree = AttentionTree(forest.nodes, torch.device("cpu"))
    found, _ = attention.tree_attention(
        torch.nn.Module(), query, key, value, None, tree=tree, sliding_window=window, scaling=0.3
    )
    kept = (0.01 * torch.arange(found.numel()).reshape(found.shape)).cos()
    gradients = torch.autograd.grad((found * kept).sum(), (query, key, value))
    wanted = torch.zeros_like(found)
    for place in map(torch.from_numpy, forest.places):
        q, (k, v) = query[0, :, place], (one[0, :, place].repeat_interleave(2, 0) for one in (key, value))
        apart = torch.arange(len(place))[:, None] - torch.arange(len(place))
        seen = (apart >= 0) & (apart < (window or len(place)))
        weights = (0.3 * q @ k.transpose(1, 2)).masked_fill(~seen, -torch.inf).softmax(-1)
        wanted = wanted.index_put((torch.tensor([0]), place), (weights @ v).transpose(0, 1))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    theirs = torch.autograd.grad((wanted * kept).sum(), (query, key, value))
    for mine, other in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("window", [1000, None])
def test_masks_grow_with_the_window_or_the_path_and_never_with_its_square(window: int | None, device: str) -> None:
    """A session of 32k tokens that branches; a mask a node would take a gigabyte, and a float one four."""
    nodes = [
        Node(start=0, length=16_000, depth=0, path=(0,)),
        Node(start=16_000, length=16_000, depth=16_000, path=(0, 1)),
        Node(start=32_000, length=9_000, depth=16_000, path=(0, 2)),
    ]
    tree = AttentionTree(nodes, torch.device("cpu"))
    if device == "cuda":
        tree._kind = lambda dtype: torch.bool  # type: ignore[method-assign]
    blocks = [block for node in nodes for block in tree.blocks(node, window, torch.bfloat16)]
    widest = window + attention.ROWS - 1 if window else 32_000
    masks = [block.mask for block in blocks if isinstance(block.mask, Tensor)]
    assert masks and max(len(mask) for mask in masks) == attention.ROWS
    assert max(mask.shape[1] for mask in masks) == widest
    assert len({mask.untyped_storage().data_ptr() for mask in masks}) == 1, "all are views of one"
    assert tree.mask_bytes == attention.ROWS * widest * (2 if device == "cpu" else 1)
    told = [node for node in nodes if window or node.depth]
    assert sum(len(mask) for mask in masks) == sum(node.length for node in told), "every token is in one block"


def trained(folder: Path, samples: list[Sample], **settings: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    method = CombineTopK(CombineTopKConfig(teacher_top_k=6, w_rl=0.5, entropy_coef=0.1))
    one = PolicyTrainer(load_model(folder, dtype=torch.float32), None, method, TrainingConfig(**settings))
    metrics = dict(one.compute(samples).metrics)
    return {name: master.grad for name, master in one.optimizer.masters.items()}, metrics  # type: ignore[misc]


def test_shared_beginnings_blocks_and_checkpointed_layers_leave_loss_and_gradients_as_they_are(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path, kind="qwen3")
    samples = [taught(s, noise(i, 2, len(s.response_ids), WORDS, scale=3.0), 6) for i, s in enumerate(mixed())]
    expected, metrics = trained(folder, samples, share_prefixes=False, micro_batch_tokens=2048)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
    for settings in (
        {"share_prefixes": True},
        {"share_prefixes": True, "micro_batch_tokens": 70},
        {"share_prefixes": True, "logits_mb": 1, "activation_checkpointing": True},
        {"share_prefixes": False, "micro_batch_tokens": 1, "offload_optimizer": True},
    ):
        gradients, seen = trained(folder, samples, **settings)
        assert seen["loss"] == pytest.approx(metrics["loss"], abs=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-5, msg=f"{settings}: {name}")


def test_turns_of_a_session_go_through_the_model_once(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path)
    samples = session("a", 8)
    _, shared = trained(folder, samples)
    _, apart = trained(folder, samples, share_prefixes=False)
    assert shared["forward_tokens"] == len(samples[-1].prompt_ids) + len(samples[-1].response_ids)
    assert apart["forward_tokens"] == sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)
    assert apart["forward_tokens"] / shared["forward_tokens"] > 4
    assert shared["saved_tokens"] == apart["forward_tokens"] - shared["forward_tokens"] and apart["saved_tokens"] == 0


def test_checkpointed_layers_run_again_in_the_backward_pass_without_dropout(tmp_path: Path) -> None:
    model = load_model(build_tiny_model(tmp_path), dtype=torch.float32)
    calls: list[str] = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
    method = CombineTopK(CombineTopKConfig(teacher_top_k=6))
    one = PolicyTrainer(model, None, method, TrainingConfig(activation_checkpointing=True))
    before = len(calls)
    one.compute([make_sample("x", 4, 6)])
    assert len(calls) - before == 2
    assert not model.model.layers[0].self_attn.training and not model.model.layers[0].mlp.training
