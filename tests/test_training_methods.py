"""Every method through the real trainer on a tiny model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clawrl.messages import Sample
from clawrl.methods.base import LossInputs, LossOutput
from clawrl.methods.combine_topk import CombineTopK, CombineTopKConfig
from clawrl.methods.custom_loss import with_loss
from clawrl.methods.registry import build_method, builtin_names, method_class
from clawrl.training.config import TrainingConfig
from clawrl.training.model import full_parameters, load_model
from clawrl.training.policy_trainer import PolicyTrainer, SkipReason
from tests.training_samples import make_sample, naive_logits, naive_logps, noise, taught

torch.set_num_threads(1)

TOP_K = 5
METHODS = pytest.mark.parametrize("name", builtin_names())


def raise_likelihood(inputs: LossInputs) -> LossOutput:
    loss = -(inputs.logp_BT * inputs.mask_BT).sum() / inputs.batch_tokens
    return LossOutput(loss=loss, metrics={"mine": loss.detach()})


def trainer(
    folder: Path, name: str, *, dtype: torch.dtype = torch.float32, loss: str | None = None, **settings: Any
) -> PolicyTrainer:
    config = method_class(name).Config
    wanted = {"baseline": "none", "teacher_top_k": TOP_K, "kl_coef": 0.05, **settings.pop("method", {})}
    method = build_method(config(**{key: value for key, value in wanted.items() if key in config.model_fields}))
    reference = load_model(folder, dtype=dtype) if method.needs_reference else None
    # A large epsilon makes Adam's step a smooth function of the gradient.
    training = TrainingConfig(**{"learning_rate": 1e-3, "adam_eps": 1e-3, **settings})
    return PolicyTrainer(load_model(folder, dtype=dtype), reference, with_loss(method, loss), training)


@pytest.fixture(scope="module")
def batch(tiny_folder: Path) -> list[Sample]:
    """Both, only a teacher of one hint, only a reward; teachers that differ from the policy."""
    model = load_model(tiny_folder, dtype=torch.float32)
    both, hinted = make_sample("a", 6, 8, temperature=0.8), make_sample("b", 3, 5, rl_mask=False)
    samples = []
    for seed, (sample, hints) in enumerate([(both, 3), (hinted, 1)]):
        logits_RV = naive_logits(model, sample)
        samples.append(taught(sample, logits_RV[None] + noise(seed, hints, *logits_RV.shape, scale=0.5), TOP_K))
    samples.append(make_sample("c", 9, 4, reward=-1.0))
    return [replace(s, behaviour_logps=np.array(naive_logps(model, s), dtype=np.float32) - 0.1) for s in samples]


def fitting(name: str, samples: list[Sample]) -> list[Sample]:
    """What the method would have made of these turns."""
    if name == "binary_rl":
        return [replace(s, teacher=None) for s in samples if s.rl_mask]
    return [replace(s, rl_mask=False) for s in samples if s.opd_mask] if name.startswith("opd") else samples


def gradients(one: PolicyTrainer) -> dict[str, Tensor]:
    return {name: m.grad.clone() for name, m in one.optimizer.masters.items() if m.grad is not None}


def weights(one: PolicyTrainer) -> dict[str, Tensor]:
    return dict(full_parameters(one._model))


def largest_difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name].float() - right[name].float()).abs().max()) for name in left)


@METHODS
def test_each_method_takes_a_step_that_does_not_depend_on_the_split(
    tiny_folder: Path, name: str, batch: list[Sample]
) -> None:
    whole, split = trainer(tiny_folder, name), trainer(tiny_folder, name, micro_batch_tokens=1)
    samples, start = fitting(name, batch), weights(whole)
    plan, same = whole.compute(samples), split.compute(samples[::-1])
    assert plan.skip is None and all(np.isfinite(value) for value in plan.metrics.values())
    assert same.metrics == pytest.approx(plan.metrics, abs=1e-5)
    assert plan.metrics["taught"] == sum(s.opd_mask for s in samples)
    assert max(float(g.abs().max()) for g in gradients(whole).values()) > 1e-2
    assert largest_difference(gradients(whole), gradients(split)) < 5e-6
    assert whole.apply().changed and largest_difference(weights(whole), start) > 1e-4


@METHODS
def test_a_second_update_still_compares_with_the_policy_of_before_the_first(
    tiny_folder: Path, name: str, batch: list[Sample]
) -> None:
    one = trainer(tiny_folder, name, updates_per_batch=2, learning_rate=1e-2)
    seen: list[LossInputs] = []
    plain = one._method.loss

    def watch(inputs: LossInputs) -> LossOutput:
        seen.append(inputs)
        return plain(inputs)

    one._method.loss = watch  # type: ignore[method-assign]
    one.compute(fitting(name, batch))
    one.apply()
    first, second = seen
    assert (second.logp_BT - first.logp_BT).abs()[first.mask_BT].max() > 1e-2
    torch.testing.assert_close(second.old_logp_BT, first.logp_BT.detach(), rtol=0, atol=1e-5)
    assert set(first.frozen) == set(second.frozen)
    for key in first.frozen:
        assert first.frozen[key] is second.frozen[key] and not first.frozen[key].requires_grad
    if "topk" in name:
        old, new = second.frozen["old_logp"], second.policy.logps(second.frozen["ids"])
        torch.testing.assert_close(old, first.policy.logps(first.frozen["ids"]).detach(), rtol=0, atol=1e-5)
        assert (new - old).abs()[second.frozen["support"]].max() > 1e-2
        # Looked at anew, the moved policy would have other best tokens.
        assert not torch.equal(second.policy.topk(4)[0], first.policy.topk(4)[0])


@pytest.mark.parametrize("name", ["combine", "combine_topk"])
def test_a_teacher_that_agrees_with_the_policy_leaves_the_step_of_binary_rl(
    tiny_folder: Path, name: str, batch: list[Sample]
) -> None:
    rewarded = [s for s in batch if s.rl_mask]
    mixed, plain = trainer(tiny_folder, name), trainer(tiny_folder, "binary_rl")
    agreeing = [taught(s, naive_logits(mixed._model, s)[None], TOP_K) for s in rewarded]
    plain.compute([replace(s, teacher=None) for s in rewarded])
    mixed.compute(agreeing)
    assert largest_difference(gradients(mixed), gradients(plain)) < 2e-5
    mixed.discard()
    mixed.compute([s if s.teacher else taught(s, naive_logits(mixed._model, s)[None] * 0.9, TOP_K) for s in rewarded])
    assert largest_difference(gradients(mixed), gradients(plain)) > 1e-2
    mixed.discard()
    mixed.compute(agreeing)
    assert mixed.apply().changed and plain.apply().changed
    assert largest_difference(weights(mixed), weights(plain)) < 1e-5


@pytest.mark.parametrize("name", ["opd", "opd_topk"])
def test_a_teacher_that_agrees_with_the_policy_moves_next_to_nothing(tiny_folder: Path, name: str) -> None:
    one = trainer(tiny_folder, name, method={"kl_coef": 0.0})
    sample = make_sample("a", 6, 8, rl_mask=False)
    plan = one.compute([taught(sample, naive_logits(one._model, sample)[None], TOP_K)])
    assert plan.skip in (None, SkipReason.ZERO_ADVANTAGE) and plan.metrics["grad_norm"] < 1e-4


def test_answers_to_one_prompt_are_compared_by_their_group_wherever_they_stand(tiny_folder: Path) -> None:
    members = [
        make_sample(f"{group}{i}", 4, 3 + i, reward=reward, group=group)
        for group, rewards in (("x", [1.0, -1.0, -1.0, 0.5]), ("y", [1.0, 1.0, -1.0]), ("z", [0.5, -1.0, 1.0, 1.0]))
        for i, reward in enumerate(rewards)
    ]
    grpo = {"baseline": "group", "group_size": 4, "normalize": True, "kl_coef": 0.0}
    straight, permuted = (trainer(tiny_folder, "binary_rl", method=grpo) for _ in range(2))
    plan = straight.compute(members)
    same = permuted.compute([members[i] for i in np.random.default_rng(0).permutation(len(members))])
    assert same.metrics == pytest.approx(plan.metrics, abs=1e-5) and plan.metrics["advantage_std"] > 0.5
    assert largest_difference(gradients(straight), gradients(permuted)) < 5e-6
    straight.discard()
    equal = straight.compute([replace(member, reward=1.0) for member in members])
    assert equal.skip is SkipReason.ZERO_ADVANTAGE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rewinding_restores_the_weights_bit_for_bit_and_keeps_the_step(tiny_folder: Path, dtype: torch.dtype) -> None:
    settings = {"method": {"baseline": "running", "kl_coef": 0.0}, "learning_rate": 1e-2}
    one, fresh = (trainer(tiny_folder, "binary_rl", dtype=dtype, **settings) for _ in range(2))
    start = weights(one)
    for name in ("a", "b"):
        one.compute([make_sample(name, 4, 6)])
        one.apply()
    assert largest_difference(weights(one), start) > 1e-3 and one.method_state["baseline"] > 0.0
    one.compute([make_sample("never applied", 4, 6)])
    one.rewind(start)
    assert all(torch.equal(value, start[name]) for name, value in weights(one).items())
    assert one.optimizer.state_dict()["adam"]["state"] == {} and gradients(one) == {}
    assert one.step == 2 and one.method_state == {"baseline": 0.0}
    for each in (one, fresh):
        each.compute([make_sample("c", 5, 7)])
        assert each.apply().changed
    assert one.step == 3
    assert all(torch.equal(value, weights(fresh)[name]) for name, value in weights(one).items())


def test_another_methods_weights_are_taken_over_but_not_its_state(tiny_folder: Path, batch: list[Sample]) -> None:
    one, other = trainer(tiny_folder, "binary_rl", method={"baseline": "running"}), trainer(tiny_folder, "opd")
    one.compute(fitting("binary_rl", batch[:1]))
    one.apply()
    other.load_state_dict(one.state_dict())
    assert other.step == 1 and other.method_state == {}
    assert largest_difference(weights(other), weights(one)) == 0.0


def test_a_loss_of_ones_own_trains(tiny_folder: Path, batch: list[Sample]) -> None:
    one = trainer(tiny_folder, "binary_rl", loss="tests.test_training_methods:raise_likelihood")
    samples = fitting("binary_rl", batch)
    before = sum(sum(naive_logps(one._model, s)) for s in samples)
    for _ in range(3):
        assert "mine" in one.compute(samples).metrics
        assert one.apply().changed
    # Also that of the badly rewarded turn: the reward is not this loss's business.
    assert sum(sum(naive_logps(one._model, s)) for s in samples) > before + 0.1


def test_a_teacher_of_other_widths_in_one_batch_is_padded_not_mixed_up(tiny_folder: Path, batch: list[Sample]) -> None:
    one = trainer(tiny_folder, "combine_topk", method={"kl_coef": 0.0})
    assert isinstance(one._method, CombineTopK) and isinstance(one._method._config, CombineTopKConfig)
    one.compute(batch)
    together = gradients(one)
    one.discard()
    total: dict[str, Tensor] = {}
    for sample in batch:
        one.compute([sample])
        for name, gradient in gradients(one).items():
            total[name] = total.get(name, torch.zeros_like(gradient)) + gradient / len(batch)
        one.discard()
    assert largest_difference(total, together) < 5e-6
