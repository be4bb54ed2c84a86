"""Adapters on one rank. With two ranks they are among the layouts of test_training_parallel.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.training.checkpoint import load_checkpoint
from clawrl.training.config import LoraConfig, TrainingConfig
from clawrl.training.lora import base_parameters
from clawrl.training.model import full_parameters, load_model
from clawrl.training.policy_trainer import PolicyTrainer
from clawrl.weights.manifest import as_bytes, build_manifest
from tests.checkpoint_kit import save_checkpoint
from tests.tiny_model import build_tiny_model
from tests.training_samples import make_sample, naive_logps, trainer_logps

torch.set_num_threads(1)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
ADAPTED = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def trainer(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    lora: Mapping[str, Any] | None = None,
    plain: bool = False,
    kl_coef: float = 0.0,
    copy: bool = False,
    **settings: Any,
) -> PolicyTrainer:
    adapters = None if plain else LoraConfig(**{"rank": 4, "alpha": 12, **(lora or {})})
    return PolicyTrainer(
        load_model(folder, dtype=dtype),
        load_model(folder, dtype=dtype) if copy else None,
        BinaryRL(BinaryRLConfig(baseline="none", kl_coef=kl_coef)),
        TrainingConfig(**{"learning_rate": 1e-2, "lora": adapters, **settings}),
    )


def advance(one: PolicyTrainer, steps: range) -> PolicyTrainer:
    for i in steps:
        one.compute([make_sample(f"{i}{j}", 4, 6, reward=(-1.0) ** (i + j // 2)) for j in range(3)])
        assert one.apply().changed
    return one


def published(one: PolicyTrainer) -> dict[str, Tensor]:
    return dict(full_parameters(one._model))


def base(one: PolicyTrainer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter, _ in base_parameters(one._model)}


def adapters(one: PolicyTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in one._model.named_parameters() if ".lora_" in name}


def assert_same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(as_bytes(left[name]), as_bytes(right[name])), name


def test_the_policy_learns_by_its_adapters_while_no_bit_of_the_base_moves(folder: Path) -> None:
    one = trainer(folder)
    sample = make_sample("x", 5, 8)
    before, start, first = naive_logps(one._model, sample), base(one), adapters(one)
    for _ in range(6):
        one.compute([make_sample("x", 5, 8, logps=naive_logps(one._model, sample))])
        one.apply()
        published(one)
    assert sum(naive_logps(one._model, sample)) - sum(before) > 0.5
    assert_same_bits(base(one), start)
    changed = adapters(one)
    # A moves from the second step on, when B is no longer zero.
    assert all(not torch.equal(changed[name], first[name]) for name in first)
    assert set(one.optimizer.masters) == set(first) and len(first) == 2 * 7 * 2


@DTYPES
def test_before_the_first_step_the_published_weights_are_the_models_bit_for_bit(
    folder: Path, dtype: torch.dtype
) -> None:
    one, plain = trainer(folder, dtype=dtype), load_model(folder, dtype=dtype)
    for model in (one._model, plain):
        # Adding zero would make another zero of it, and so another digest.
        owner = dict((name, parameter) for name, parameter, _ in base_parameters(model))
        with torch.no_grad():
            owner[f"{ADAPTED}.weight"][0, 0] = -0.0
    assert_same_bits(published(one), dict(full_parameters(plain)))
    digests = [build_manifest(0, dict(full_parameters(m)), bucket_bytes=2**20).digest for m in (one._model, plain)]
    assert digests[0] == digests[1]


@DTYPES
def test_published_weights_are_the_base_plus_alpha_over_rank_b_a(folder: Path, dtype: torch.dtype) -> None:
    one = advance(trainer(folder, dtype=dtype), range(3))
    original, whole, ours = dict(load_model(folder, dtype=dtype).named_parameters()), published(one), adapters(one)
    assert list(whole) == list(original)
    adapted = 0
    for name, weight in original.items():
        path = name.removesuffix(".weight")
        expected = weight.detach()
        if path.endswith("_proj"):
            a, b = (ours[f"{path}.lora_{x}.default.weight"].double() for x in "AB")
            expected = (expected.double() + (12 / 4) * b @ a).to(dtype)
            adapted += 1
            assert not torch.equal(whole[name], weight)
        # One step of bfloat16's grid at most: float32 may round to the other side of a tie.
        torch.testing.assert_close(whole[name], expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
    assert adapted == 14


def test_a_plain_model_with_the_published_weights_says_what_the_trainer_says(folder: Path) -> None:
    one = advance(trainer(folder), range(3))
    plain = load_model(folder, dtype=torch.float32)
    untrained = [naive_logps(plain, make_sample(name, 5, 9, temperature=0.7)) for name in "ab"]
    plain.load_state_dict(published(one), strict=False)
    samples = [make_sample(name, 5, 9, temperature=0.7) for name in "ab"]
    for i, logps in enumerate(trainer_logps(one._model, samples)):
        assert logps.tolist() == pytest.approx(naive_logps(plain, samples[i]), abs=1e-5)
        assert logps.tolist() != pytest.approx(untrained[i], abs=1e-2)


def test_publishing_leaves_the_live_model_alone_and_gives_copies(folder: Path) -> None:
    one = advance(trainer(folder), range(2))
    start, ours = base(one), adapters(one)
    first = published(one)
    second = published(one)
    for tensor in second.values():
        tensor.zero_()
    assert_same_bits(base(one), start)
    assert_same_bits(adapters(one), ours)
    assert_same_bits(published(one), first)


def test_the_start_depends_on_the_seed_alone(folder: Path) -> None:
    torch.manual_seed(1)
    left = adapters(trainer(folder))
    torch.manual_seed(2)
    right = adapters(trainer(folder))
    other = adapters(trainer(folder, seed=1))
    assert_same_bits(left, right)
    matrices = [tensor for name, tensor in left.items() if ".lora_A." in name]
    for name, tensor in left.items():
        if ".lora_B." in name:
            assert not tensor.any()
        else:
            assert not torch.equal(tensor, other[name])
            # Of variance 1/(3 · inputs), whatever the rank: peft's own choice and LoRA's first one.
            assert tensor.std().item() == pytest.approx((3 * tensor.shape[1]) ** -0.5, rel=0.2)
    assert not torch.equal(matrices[0], matrices[1])


@DTYPES
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(folder: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    straight = advance(trainer(folder, dtype=dtype, weight_decay=0.01), range(4))
    save_checkpoint(tmp_path, advance(trainer(folder, dtype=dtype, weight_decay=0.01), range(2)).state_dict())
    resumed = trainer(folder, dtype=dtype, weight_decay=0.01)
    resumed.load_state_dict(read(tmp_path))
    assert resumed.step == 2
    advance(resumed, range(2, 4))
    assert_same_bits(adapters(resumed), adapters(straight))
    assert_same_bits(published(resumed), published(straight))


def read(folder: Path) -> dict[str, Any]:
    state = load_checkpoint(folder)
    assert state is not None
    return state


def test_a_checkpoint_holds_adapters_and_no_base_until_a_rewind_changes_it(folder: Path) -> None:
    one = advance(trainer(folder), range(1))
    start = dict(full_parameters(load_model(folder, dtype=torch.float32)))
    assert set(one.state_dict()["optimizer"]["masters"]) == set(adapters(one))
    assert one.state_dict()["lora"]["base"] == {}
    one.rewind(start)
    assert one.state_dict()["lora"]["base"] == {}
    moved = {**start, f"{ADAPTED}.weight": start[f"{ADAPTED}.weight"] + 1}
    one.rewind(moved)
    assert list(one.state_dict()["lora"]["base"]) == [f"{ADAPTED}.weight"]
    # Back at what the folder has, but the checkpoint need not know that.
    one.rewind(start)
    assert_same_bits(published(one), start)


@DTYPES
def test_after_a_rewind_training_goes_on_from_those_weights_with_new_adapters(
    folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    one = trainer(folder, dtype=dtype)
    first = adapters(one)
    version_2 = published(advance(one, range(2)))
    advance(one, range(2, 4))
    one.rewind(version_2)
    assert one.step == 4 and one.optimizer.state_dict()["adam"]["state"] == {}
    assert_same_bits(published(one), version_2)
    assert_same_bits(base(one), version_2)
    assert_same_bits(adapters(one), first)
    save_checkpoint(tmp_path / "at", one.state_dict())
    advance(one, range(4, 6))
    assert_same_bits(base(one), version_2)
    save_checkpoint(tmp_path / "after", one.state_dict())
    for checkpoint, steps in (("at", range(4, 6)), ("after", range(0))):
        resumed = trainer(folder, dtype=dtype)
        resumed.load_state_dict(read(tmp_path / checkpoint))
        assert_same_bits(base(resumed), version_2)
        assert_same_bits(published(advance(resumed, steps)), published(one))


def test_weights_that_lack_a_parameter_are_refused_before_anything_changes(folder: Path) -> None:
    one = advance(trainer(folder), range(1))
    before, lacking = published(one), published(one)
    del lacking[f"{ADAPTED}.weight"]
    with pytest.raises(ValueError, match=rf"lack {ADAPTED}\.weight and 0 more"):
        one.rewind({name: tensor + 1 for name, tensor in lacking.items()})
    assert_same_bits(published(one), before)


def test_a_checkpoint_of_before_a_rewind_is_not_put_below_a_base_that_moved(folder: Path) -> None:
    one = advance(trainer(folder), range(1))
    state = one.state_dict()
    one.rewind(published(one))
    with pytest.raises(RuntimeError, match="restore into a fresh model"):
        one.load_state_dict(state)


@pytest.mark.parametrize("updates_per_batch", [1, 2])
def test_the_model_without_its_adapters_is_the_reference(folder: Path, updates_per_batch: int) -> None:
    """As a second copy is, to the last gradient; and the adapters are on again afterwards."""
    own, copy = (
        trainer(folder, kl_coef=0.1, copy=copied, updates_per_batch=updates_per_batch) for copied in (False, True)
    )
    for one in (own, copy):
        advance(one, range(2))
    plans = [one.compute([make_sample("x", 4, 6)]) for one in (own, copy)]
    assert plans[0].metrics["kl"] > 1e-3 and plans[0].metrics == plans[1].metrics
    for name, master in own.optimizer.masters.items():
        assert torch.equal(master.grad, copy.optimizer.masters[name].grad), name
    before = {name: master.clone() for name, master in own.optimizer.masters.items()}
    assert own.apply().changed
    assert all(not torch.equal(master, before[name]) for name, master in own.optimizer.masters.items())


@pytest.mark.parametrize(
    ("tied", "targets", "unknown"),
    [
        (True, ("q_proj", "query", "value"), "query, value"),
        (False, ("embed_tokens",), "embed_tokens"),
        (False, ("proj",), "proj"),
        (True, ("lm_head",), "lm_head"),
    ],
)
def test_a_target_that_the_model_does_not_have_is_named_with_those_it_has(
    tmp_path: Path, tied: bool, targets: tuple[str, ...], unknown: str
) -> None:
    model = build_tiny_model(tmp_path, tie_embeddings=tied)
    with pytest.raises(ValueError, match=rf"trainer\.training\.lora\.targets: .* {unknown} to adapt; .*, q_proj"):
        trainer(model, lora={"targets": targets})


def test_a_vocabulary_projection_of_its_own_can_be_adapted(tmp_path: Path) -> None:
    one = trainer(build_tiny_model(tmp_path, tie_embeddings=False), lora={"targets": ("lm_head",)})
    start = published(one)
    changed = {
        name for name, tensor in published(advance(one, range(1))).items() if not torch.equal(tensor, start[name])
    }
    assert changed == {"lm_head.weight"}


def test_biases_stay_where_they_were(tmp_path: Path) -> None:
    one = trainer(build_tiny_model(tmp_path, kind="qwen2"))
    names = [name for name, _ in load_model(tmp_path, dtype=torch.float32).named_parameters()]
    assert any(name.endswith("q_proj.bias") for name in names)
    start = published(one)
    assert list(start) == names
    for name, tensor in published(advance(one, range(1))).items():
        assert torch.equal(tensor, start[name]) is not name.endswith("_proj.weight"), name


def test_a_checkpoint_of_other_settings_is_refused_by_the_name_of_the_setting(folder: Path) -> None:
    kinds = {
        "none": trainer(folder, plain=True),
        "rank 4": trainer(folder),
        "alpha": trainer(folder, lora={"alpha": 1}),
        "fewer": trainer(folder, lora={"targets": ("q_proj",)}),
    }
    for left, source in kinds.items():
        for right, into in kinds.items():
            if left == right:
                into.load_state_dict(source.state_dict())
            else:
                with pytest.raises(
                    ValueError, match=r"trainer\.training\.lora is .* but the checkpoint was written with"
                ):
                    into.load_state_dict(source.state_dict())
    old = kinds["none"].state_dict()
    del old["lora"]
    kinds["none"].load_state_dict(old)
