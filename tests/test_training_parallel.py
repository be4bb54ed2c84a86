"""Two and four gloo ranks against one. They are spawned once and write what they saw; the tests read it."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from clawrl.messages import Sample
from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.methods.combine_topk import CombineTopK, CombineTopKConfig
from clawrl.training.checkpoint import load_checkpoint
from clawrl.training.config import LoraConfig, TrainingConfig
from clawrl.training.lora import adapter_tensors, base_tensors
from clawrl.training.model import full_parameters, load_model
from clawrl.training.policy_trainer import PolicyTrainer
from clawrl.training.tree import MIN_SHARED
from tests.checkpoint_kit import save_checkpoint
from tests.tiny_model import build_tiny_model
from tests.training_samples import WORDS, make_sample, noise, taught

torch.set_num_threads(1)

LAYOUTS = {
    # name: (tp_size, fsdp_size, tied embeddings, adapters); an untied, row-sharded embedding has a gradient placed
    # differently.
    "tp": (2, 1, False, False),
    "tp_tied": (2, 1, True, False),
    "fsdp": (1, 2, False, False),
    "fsdp_lora": (1, 2, False, True),
    "fsdp_tied_lora": (1, 2, True, True),
    "mixed": (2, 2, False, False),
    "mixed_tied": (2, 2, True, False),
}
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


TOP_K = 6


def make_trainer(
    folder: Path, lora: bool, tp_size: int = 1, fsdp_size: int = 1, dtype: torch.dtype = torch.float32
) -> PolicyTrainer:
    def load() -> Any:
        return load_model(folder, dtype=dtype, tp_size=tp_size, fsdp_size=fsdp_size)

    # A large epsilon makes Adam's step a smooth function of the gradient, so that rounding stays rounding.
    config = TrainingConfig(
        tp_size=tp_size,
        fsdp_size=fsdp_size,
        learning_rate=1e-2,
        adam_eps=1e-3,
        updates_per_batch=2,
        micro_batch_tokens=40,
        max_grad_norm=0.5,
        lora=LoraConfig(rank=4, alpha=8) if lora else None,
    )
    return PolicyTrainer(load(), None if lora else load(), BinaryRL(BinaryRLConfig(kl_coef=0.1)), config)


def batch(i: int) -> list[Sample]:
    """Of different lengths, with a beginning that they share."""
    shared = make_sample(f"shared{i}", MIN_SHARED, 0).prompt_ids
    made = [make_sample(f"{i}{j}", 3 + j, 9 - j, reward=(-1.0) ** j) for j in range(3)]
    return [replace(sample, prompt_ids=np.concatenate([shared, sample.prompt_ids])) for sample in made]


def taught_batch() -> list[Sample]:
    """Samples with no, one and two hints."""
    samples = batch(7)
    return [samples[0]] + [
        taught(s, 3 * noise(h, h, len(s.response_ids), WORDS), TOP_K) for h, s in enumerate(samples) if h
    ]


def observe(folder: Path, scratch: Path, lora: bool, tp_size: int = 1, fsdp_size: int = 1) -> dict[str, Any]:
    trainer = make_trainer(folder, lora, tp_size, fsdp_size)
    plan = trainer.compute(batch(0))
    seen: dict[str, Any] = {"metrics": dict(plan.metrics), "gradients": full_gradients(trainer)}
    trainer.apply()
    seen["weights"] = dict(full_parameters(trainer._model))
    # With adapters the base is the reference for KL and stays: what is gone back to is told apart.
    apart = chain(base_tensors(trainer._model), adapter_tensors(trainer._model))
    kept = {name: tensor.clone() for name, tensor in apart} if lora else seen["weights"]

    seen["reasons"] = []
    for bad in ([make_sample("m", 3, 4, mask=[False] * 4)], [make_sample("n", 3, 4, logps=[float("nan")] * 4)]):
        trainer.compute(bad)
        seen["reasons"].append(str(trainer.apply().reason))
    seen["weights_after_bad"] = dict(full_parameters(trainer._model))

    save_checkpoint(scratch, trainer.state_dict())
    resumed = restored(scratch, make_trainer(folder, lora, tp_size, fsdp_size))
    for name, one in (("straight", trainer), ("resumed", resumed)):
        for i in (1, 2):
            one.compute(batch(i))
            if one is trainer:
                look(one)
            one.apply()
        seen[name] = dict(full_parameters(one._model))

    look(trainer)
    trainer.rewind(kept)
    seen["rewound_to_1"] = dict(full_parameters(trainer._model))
    trainer.compute(batch(3))
    trainer.apply()
    save_checkpoint(scratch / "rewound", trainer.state_dict())
    resumed = restored(scratch / "rewound", make_trainer(folder, lora, tp_size, fsdp_size))
    seen["after_rewind"], seen["after_rewind_resumed"] = (dict(full_parameters(t._model)) for t in (trainer, resumed))

    seen["start"] = dict(full_parameters(load_model(folder, dtype=torch.float32, tp_size=tp_size, fsdp_size=fsdp_size)))
    look(trainer)
    trainer.rewind(seen["start"])
    seen["rewound"], seen["rewound_step"] = dict(full_parameters(trainer._model)), trainer.step
    seen["rewound_moments"] = len(trainer.optimizer.state_dict()["adam"]["state"])
    trainer._method = trainer._passes.method = CombineTopK(CombineTopKConfig(teacher_top_k=TOP_K, w_rl=0.5))
    seen["taught_metrics"] = dict(trainer.compute(taught_batch()).metrics)
    seen["taught_gradients"] = full_gradients(trainer)
    return seen


def restored(scratch: Path, trainer: PolicyTrainer) -> PolicyTrainer:
    state = load_checkpoint(scratch)
    assert state is not None
    look(trainer)
    trainer.load_state_dict(state)
    return trainer


@torch.no_grad()
def look(trainer: PolicyTrainer) -> None:
    """A forward pass without a backward pass: FSDP then keeps weights gathered that the next write makes stale."""
    trainer._model(input_ids=torch.tensor([[3, 4, 5]]))


def full_gradients(trainer: PolicyTrainer) -> dict[str, torch.Tensor]:
    whole = {}
    for name, master in trainer.optimizer.masters.items():
        parameter, gradient = trainer._model.get_parameter(name), master.grad
        assert gradient is not None
        if isinstance(parameter, DTensor):
            gradient = DTensor.from_local(
                gradient,
                parameter.device_mesh,
                parameter.placements,
                shape=parameter.shape,
                stride=parameter.stride(),
            ).full_tensor()
        whole[name] = gradient.clone()
    return whole


def adapter_gradients_of_different_batches(folder: Path, rank: int) -> dict[str, dict[str, torch.Tensor]]:
    """Before and after `average_whole`, where each rank has seen a token of its own: rounding, writ large."""
    trainer = make_trainer(folder, lora=True, fsdp_size=2)
    trainer._model(input_ids=torch.tensor([[3, 4 + rank, 5]])).logits.square().sum().backward()
    trainer.optimizer.collect()
    before = full_gradients(trainer)
    trainer.optimizer.average_whole()
    return {"before": before, "after": full_gradients(trainer)}


def narrow_step(trainer: PolicyTrainer) -> dict[str, Any]:
    metrics = dict(trainer.compute(batch(0)).metrics)
    gradients = full_gradients(trainer)
    trainer.apply()
    return {"metrics": metrics, "gradients": gradients, "weights": dict(full_parameters(trainer._model))}


def run_rank(rank: int, root: Path, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous-{world}", rank=rank, world_size=world)
    for name, (tp_size, fsdp_size, tied, lora) in LAYOUTS.items():
        if tp_size * fsdp_size == world:
            seen = observe(root / f"model-{tied}", root / f"checkpoint-{name}", lora, tp_size, fsdp_size)
            torch.save(seen, root / f"{name}-{rank}.pt")
    narrow = make_trainer(root / "model-True", False, world // 2, 2, torch.bfloat16)
    torch.save(narrow_step(narrow), root / f"narrow-{world}-{rank}.pt")
    if world == 2:
        torch.save(adapter_gradients_of_different_batches(root / "model-False", rank), root / f"different-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parallel")
    for tied in (False, True):
        build_tiny_model(root / f"model-{tied}", tie_embeddings=tied)
        for lora in (False, True):
            seen = observe(root / f"model-{tied}", root / f"checkpoint-{tied}-{lora}", lora)
            torch.save(seen, root / f"one-{tied}-{lora}.pt")
    narrow = make_trainer(root / "model-True", False, dtype=torch.bfloat16)
    torch.save(narrow_step(narrow), root / "narrow-one.pt")
    for world in (2, 4):
        torch.multiprocessing.spawn(run_rank, (root, world), nprocs=world)
    return root


def load(root: Path, layout: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    tp_size, fsdp_size, tied, lora = LAYOUTS[layout]
    ranks = [torch.load(root / f"{layout}-{r}.pt") for r in range(tp_size * fsdp_size)]
    return ranks, torch.load(root / f"one-{tied}-{lora}.pt")


def _cut(metrics: Mapping[str, float]) -> dict[str, float]:
    """What a layout does in its own way; whatever the cut, both together are all tokens of all samples."""
    return {name: metrics[name] for name in ("forward_tokens", "saved_tokens")}


@LAYOUT
def test_any_layout_gives_the_loss_gradients_and_weights_of_one(root: Path, layout: str) -> None:
    ranks, one = load(root, layout)
    for seen in ranks:
        # How the work is cut is a layout's own business.
        for key, value in (one["metrics"] | _cut(seen["metrics"])).items():
            assert seen["metrics"][key] == pytest.approx(value, abs=1e-5), key
        assert sum(_cut(seen["metrics"]).values()) == sum(_cut(one["metrics"]).values())
        for what in ("gradients", "weights", "straight"):
            assert list(seen[what]) == list(one[what])
            for name, tensor in one[what].items():
                torch.testing.assert_close(seen[what][name], tensor, rtol=0, atol=1e-5, msg=f"{what} of {name}")
    start = dict(full_parameters(load_model(root / f"model-{LAYOUTS[layout][2]}", dtype=torch.float32)))
    moved = max((one["weights"][name] - start[name]).abs().max().item() for name in start)
    assert moved > 1e-3


@LAYOUT
def test_ranks_never_part_ways(root: Path, layout: str) -> None:
    (first, *others), _ = load(root, layout)
    for other in others:
        assert other["metrics"] == first["metrics"]
        for name in first["straight"]:
            assert torch.equal(first["straight"][name], other["straight"][name]), name


@LAYOUT
def test_bad_batches_are_skipped_by_all_ranks_without_a_hang(root: Path, layout: str) -> None:
    for seen in load(root, layout)[0]:
        assert seen["reasons"] == ["all_masked", "non_finite_gradient"]
        for name, tensor in seen["weights"].items():
            assert torch.equal(seen["weights_after_bad"][name], tensor), name


@LAYOUT
def test_ranks_resume_from_their_own_files_bit_by_bit(root: Path, layout: str) -> None:
    ranks, _ = load(root, layout)
    assert len(list((root / f"checkpoint-{layout}").glob("*.pt"))) == len(ranks)
    for seen in ranks:
        for name, tensor in seen["straight"].items():
            assert torch.equal(seen["resumed"][name], tensor), name


@LAYOUT
def test_rewinding_brings_every_rank_back_to_whole_weights_bit_by_bit(root: Path, layout: str) -> None:
    ranks, one = load(root, layout)
    for seen in [*ranks, one]:
        # Four batches that taught something and two that did not lie behind it.
        assert seen["rewound_step"] == 6 and seen["rewound_moments"] == 0
        for name, tensor in seen["weights"].items():
            assert torch.equal(seen["rewound_to_1"][name], tensor), name
        for name, tensor in one["start"].items():
            assert torch.equal(seen["rewound"][name], tensor), name


@LAYOUT
def test_a_checkpoint_after_a_rewind_restores_what_was_trained_from_there(root: Path, layout: str) -> None:
    ranks, one = load(root, layout)
    for seen in [*ranks, one]:
        assert any(not torch.equal(seen["after_rewind"][name], seen["rewound_to_1"][name]) for name in seen["start"])
        for name, tensor in seen["after_rewind"].items():
            assert torch.equal(seen["after_rewind_resumed"][name], tensor), name


@LAYOUT
def test_any_layout_distils_whole_distributions_as_one_does_also_after_a_rewind(root: Path, layout: str) -> None:
    ranks, one = load(root, layout)
    assert one["taught_metrics"]["taught"] == 2.0 and one["taught_metrics"]["opd_gap"] > 0.1
    assert max(gradient.abs().max().item() for gradient in one["taught_gradients"].values()) > 1e-2
    for seen in ranks:
        expected = one["taught_metrics"] | _cut(seen["taught_metrics"])
        assert seen["taught_metrics"] == pytest.approx(expected, abs=1e-5)
        for name, tensor in one["taught_gradients"].items():
            torch.testing.assert_close(seen["taught_gradients"][name], tensor, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("world", [2, 4])
def test_sixteen_bits_train_in_any_layout_with_gradients_added_up_in_float32(root: Path, world: int) -> None:
    one = torch.load(root / "narrow-one.pt")
    largest = max(float(gradient.abs().max()) for gradient in one["gradients"].values())
    for rank in range(world):
        seen = torch.load(root / f"narrow-{world}-{rank}.pt")
        assert seen["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], abs=2e-2)
        for name, gradient in one["gradients"].items():
            assert seen["gradients"][name].dtype == torch.float32 and seen["weights"][name].dtype == torch.bfloat16
            torch.testing.assert_close(seen["gradients"][name], gradient, rtol=0, atol=0.05 * largest, msg=name)


def test_adapters_are_unknown_to_fsdp_and_get_one_gradient_from_us(root: Path) -> None:
    left, right = (torch.load(root / f"different-{r}.pt") for r in range(2))
    moved = [name for name in left["before"] if ".lora_B." in name]
    assert len(moved) == 2 * 7
    for name in moved:
        own = left["before"][name], right["before"][name]
        assert (own[0] - own[1]).abs().max() > 1e-2, "FSDP averages adapters, so that we need not"
        torch.testing.assert_close(left["after"][name], (own[0] + own[1]) / 2)
    for name in left["after"]:
        assert torch.equal(left["after"][name], right["after"][name]), name
