from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from clawrl.messages import Sample
from clawrl.methods.base import LossInputs, LossOutput
from clawrl.methods.binary_rl import BinaryRL, BinaryRLConfig
from clawrl.training.config import TrainingConfig
from clawrl.training.model import full_parameters, load_model
from clawrl.training.policy_trainer import PolicyTrainer, SkipReason
from tests.tiny_model import build_tiny_model
from tests.training_samples import make_sample, naive_logits, naive_logps

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def trainer(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    method: BinaryRL | None = None,
    reference: bool = False,
    **settings: Any,
) -> PolicyTrainer:
    return PolicyTrainer(
        load_model(folder, dtype=dtype),
        load_model(folder, dtype=dtype) if reference else None,
        method or BinaryRL(BinaryRLConfig(baseline="none")),
        TrainingConfig(**{"learning_rate": 1e-3, **settings}),
    )


def weights(trainer: PolicyTrainer) -> dict[str, Tensor]:
    return dict(full_parameters(trainer._model))


def gradients(trainer: PolicyTrainer) -> dict[str, Tensor]:
    return {name: m.grad.clone() for name, m in trainer.optimizer.masters.items() if m.grad is not None}


def moments(trainer: PolicyTrainer) -> list[Tensor]:
    states = trainer.optimizer.state_dict()["adam"]["state"].values()
    return [value.clone() for state in states for value in state.values()]


def assert_same(left: Mapping[str, Tensor], right: Mapping[str, Tensor], tolerance: float = 0.0) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=tolerance)


def mixed_batch() -> list[Sample]:
    return [
        make_sample("a", 6, 8, reward=1.0),
        make_sample("b", 3, 15, reward=-1.0, temperature=0.7),
        make_sample("c", 12, 2, reward=1.0, mask=[True, False]),
        make_sample("d", 4, 5, reward=1.0, mask=[False] * 5),
        make_sample("e", 2, 9, reward=-1.0),
    ]


@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean"])
def test_gradients_and_loss_do_not_depend_on_the_split_or_the_order(folder: Path, aggregation: str) -> None:
    def run(samples: Sequence[Sample], micro_batch_tokens: int) -> tuple[float, dict[str, Tensor]]:
        method = BinaryRL(BinaryRLConfig(baseline="none", aggregation=aggregation))
        one = trainer(folder, method=method, micro_batch_tokens=micro_batch_tokens)
        plan = one.compute(samples)
        return plan.metrics["loss"], gradients(one)

    whole_loss, whole = run(mixed_batch(), 1000)
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-2
    for samples, limit in ((mixed_batch(), 1), (mixed_batch(), 40), (mixed_batch()[::-1], 30)):
        loss, split = run(samples, limit)
        assert loss == pytest.approx(whole_loss, abs=1e-6)
        assert_same(split, whole, tolerance=5e-6)


def test_a_masked_sample_neither_trains_nor_dilutes_the_others(folder: Path) -> None:
    with_masked, without = trainer(folder), trainer(folder)
    with_masked.compute(mixed_batch())
    without.compute([sample for sample in mixed_batch() if sample.turn_id != "d"])
    assert_same(gradients(with_masked), gradients(without))


def test_metrics_say_what_the_batch_was(folder: Path) -> None:
    one = trainer(folder, reference=True, method=BinaryRL(BinaryRLConfig(kl_coef=0.1)))
    metrics = one.compute(mixed_batch()).metrics
    assert set(metrics) == {
        "loss",
        "kl",
        "clip_fraction",
        "tis_clip_fraction",
        "tis_weight",
        "grad_norm",
        "reward_mean",
        "rewarded",
        "taught",
        "advantage_std",
        "train_rollout_logprob_abs_diff",
        "train_rollout_kl",
        "ppo_kl",
        "entropy",
        "response_length_mean",
        "samples",
        "tokens",
        "forward_tokens",
        "saved_tokens",
        "method_baseline",
    }
    assert metrics["tokens"] == 8 + 15 + 1 + 9
    assert metrics["response_length_mean"] == pytest.approx((8 + 15 + 2 + 5 + 9) / 5)
    assert metrics["reward_mean"] == pytest.approx(0.2)
    assert (metrics["rewarded"], metrics["taught"], metrics["samples"]) == (5.0, 0.0, 5.0)
    assert metrics["advantage_std"] == pytest.approx(np.std([1, -1, 1, 1, -1]))
    assert metrics["clip_fraction"] == 0.0
    assert metrics["kl"] == 0.0
    assert metrics["grad_norm"] > 0.0


def test_the_log_prob_difference_is_zero_when_the_engine_agrees_and_grows_when_it_does_not(folder: Path) -> None:
    one = trainer(folder)
    shape = {"prompt": 4, "response": 6, "temperature": 0.8}
    exact = naive_logps(one._model, make_sample("x", 4, 6, temperature=0.8))
    diff = one.compute([make_sample("x", **shape, logps=exact)]).metrics["train_rollout_logprob_abs_diff"]
    assert diff < 1e-5
    one.discard()
    off = [value + 0.25 for value in exact]
    diff = one.compute([make_sample("x", **shape, logps=off)]).metrics["train_rollout_logprob_abs_diff"]
    assert diff == pytest.approx(0.25, abs=1e-4)


def test_entropy_and_divergence_from_the_engine_are_those_of_their_definitions_however_the_batch_is_cut(
    folder: Path,
) -> None:
    shapes = {"x": (4, 6, 0.8), "y": (3, 9, 1.2), "z": (5, 2, 1.0)}
    by_hand: dict[str, list[float]] = {"entropy": [], "train_rollout_kl": [], "train_rollout_logprob_abs_diff": []}
    for tokens in (12, 1000):
        one = trainer(folder, micro_batch_tokens=tokens)
        samples = []
        for values in by_hand.values():
            values.clear()
        for name, (prompt, response, temperature) in shapes.items():
            plain = make_sample(name, prompt, response, temperature=temperature)
            exact = naive_logps(one._model, plain)
            off = [value + 0.1 * ((-1) ** place) for place, value in enumerate(exact)]
            samples.append(make_sample(name, prompt, response, temperature=temperature, logps=off))
            logp_RV = torch.log_softmax(naive_logits(one._model, plain).double() / temperature, -1)
            by_hand["entropy"] += (-(logp_RV.exp() * logp_RV).sum(-1)).tolist()
            # log train - log rollout is -0.1 and 0.1 by turns: exp(r) - 1 - r.
            gaps = [mine - theirs for mine, theirs in zip(exact, off, strict=True)]
            by_hand["train_rollout_kl"] += [float(np.expm1(gap) - gap) for gap in gaps]
            by_hand["train_rollout_logprob_abs_diff"] += [abs(gap) for gap in gaps]
        metrics = one.compute(samples).metrics
        for name, values in by_hand.items():
            assert metrics[name] == pytest.approx(np.mean(values), abs=2e-5), (name, tokens)
        assert metrics["ppo_kl"] == pytest.approx(0.0, abs=1e-6), "before the first update nothing has moved"


def test_the_divergence_from_the_policy_before_the_batch_shows_with_the_second_update(folder: Path) -> None:
    sample = make_sample("x", 4, 6)
    one = trainer(folder, updates_per_batch=2, learning_rate=1e-2)
    before = naive_logps(one._model, sample)
    one.compute([sample])
    other = trainer(folder, learning_rate=1e-2)
    other.compute([sample])
    other.apply()
    moved = np.mean(np.array(before) - np.array(naive_logps(other._model, sample)))
    assert abs(moved) > 1e-3
    # The mean over both passes, of which the first reads the policy as it was.
    assert one.apply().metrics["ppo_kl"] == pytest.approx(moved / 2, rel=1e-2)


def test_a_step_says_how_long_each_of_its_phases_took(folder: Path) -> None:
    one = trainer(folder)
    one.compute(mixed_batch())
    seconds = one.apply().seconds
    assert set(seconds) == {"forward", "backward", "optimizer"} and all(value > 0 for value in seconds.values())
    one.compute(mixed_batch())
    one.discard()
    one.compute(mixed_batch())
    assert set(one.apply().seconds) == set(seconds)


@pytest.mark.parametrize(("reward", "sign"), [(1.0, 1), (-1.0, -1)])
def test_a_few_steps_move_the_response_the_way_of_its_reward(folder: Path, reward: float, sign: int) -> None:
    one = trainer(folder)
    before = sum(naive_logps(one._model, make_sample("x", 5, 8)))
    for _ in range(4):
        logps = naive_logps(one._model, make_sample("x", 5, 8))
        one.compute([make_sample("x", 5, 8, reward=reward, logps=logps)])
        assert one.apply().changed
    after = sum(naive_logps(one._model, make_sample("x", 5, 8)))
    assert sign * (after - before) > 0.5


def test_a_bfloat16_model_learns_at_a_rate_that_bfloat16_alone_would_lose(folder: Path) -> None:
    one = trainer(folder, dtype=torch.bfloat16, learning_rate=1e-5)
    name = "model.norm.weight"
    start = weights(one)
    for _ in range(3):
        one.compute([make_sample("x", 5, 8)])
        one.apply()
    moved = (one.optimizer.masters[name] - start[name].float()).abs().max().item()
    assert 1e-5 < moved < 1e-4
    assert torch.equal(weights(one)[name], start[name])


DEGENERATE = {
    "empty": ([], SkipReason.ALL_MASKED),
    "all_masked": ([make_sample("a", 3, 4, mask=[False] * 4)], SkipReason.ALL_MASKED),
    "no_rl": ([make_sample("a", 3, 4, rl_mask=False)], SkipReason.ALL_MASKED),
    "empty_response": ([make_sample("a", 3, 0)], SkipReason.ALL_MASKED),
    "zero_advantage": ([make_sample("a", 3, 4, reward=0.0)], SkipReason.ZERO_ADVANTAGE),
    "nan_behaviour": ([make_sample("a", 3, 4, logps=[-1.0, float("nan"), -1.0, -1.0])], SkipReason.NON_FINITE),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_a_batch_that_teaches_nothing_leaves_weights_and_optimizer_bit_identical(folder: Path, case: str) -> None:
    samples, reason = DEGENERATE[case]
    one = trainer(folder, weight_decay=0.1, updates_per_batch=2)
    one.compute(mixed_batch())
    assert one.apply().changed
    before, state = weights(one), moments(one)
    plan = one.compute(samples)
    assert plan.skip is reason
    result = one.apply()
    assert not result.changed and result.reason is reason and result.step == 2
    assert_same(weights(one), before)
    assert all(torch.equal(a, b) for a, b in zip(moments(one), state, strict=True))
    one.compute(mixed_batch())
    assert one.apply().changed


@pytest.mark.parametrize("samples", [[make_sample("a", 1, 1)], [make_sample("a", 3, 4), make_sample("b", 3, 4)]])
def test_one_sample_and_equal_rewards_give_finite_steps(folder: Path, samples: list[Sample]) -> None:
    one = trainer(folder)
    plan = one.compute(samples)
    assert plan.skip is None and all(np.isfinite(value) for value in plan.metrics.values())
    assert one.apply().changed


def test_zero_advantage_still_pulls_towards_the_reference_when_kl_counts(folder: Path) -> None:
    one = trainer(folder, reference=True, method=BinaryRL(BinaryRLConfig(baseline="none", kl_coef=0.5)))
    one.compute([make_sample("a", 3, 6)])
    one.apply()
    plan = one.compute([make_sample("a", 3, 6, reward=0.0)])
    assert plan.skip is None and plan.metrics["kl"] > 0.0
    assert one.apply().changed
    # Adam's momentum still leads away for a few steps.
    for _ in range(15):
        later = one.compute([make_sample("a", 3, 6, reward=0.0)])
        one.apply()
    assert later.metrics["kl"] < 0.5 * plan.metrics["kl"]


def test_kl_without_a_reference_model_is_refused_at_construction(folder: Path) -> None:
    with pytest.raises(ValueError, match="reference"):
        trainer(folder, method=BinaryRL(BinaryRLConfig(kl_coef=0.1)))


def test_a_discarded_step_leaves_nothing_behind(folder: Path) -> None:
    method = BinaryRL(BinaryRLConfig(baseline="running"))
    interrupted, straight = trainer(folder, method=method), trainer(folder, method=method)
    before = weights(interrupted)
    interrupted.compute([make_sample("z", 7, 9)])
    interrupted.discard()
    assert gradients(interrupted) == {}
    assert interrupted.step == 0 and interrupted.method_state == {"baseline": 0.0}
    assert_same(weights(interrupted), before)
    for one in (interrupted, straight):
        one.compute(mixed_batch())
        one.apply()
    assert_same(weights(interrupted), weights(straight))
    assert straight.step == 1 and straight.method_state["baseline"] == pytest.approx(0.02)


def test_the_phases_cannot_be_called_out_of_order(folder: Path) -> None:
    one = trainer(folder)
    with pytest.raises(RuntimeError, match="no step"):
        one.apply()
    one.compute(mixed_batch())
    with pytest.raises(RuntimeError, match="waits"):
        one.compute(mixed_batch())
    with pytest.raises(RuntimeError, match="waits"):
        one.state_dict()


def test_a_failed_compute_does_not_leak_gradients_into_the_next(folder: Path) -> None:
    class FailsOnSecondMicroBatch(BinaryRL):
        calls = 0

        def loss(self, inputs: LossInputs) -> LossOutput:
            self.calls += 1
            if self.calls == 2:
                raise MemoryError
            return super().loss(inputs)

    config = BinaryRLConfig(baseline="none")
    failed = trainer(folder, method=FailsOnSecondMicroBatch(config), micro_batch_tokens=20)
    clean = trainer(folder, micro_batch_tokens=20)
    with pytest.raises(MemoryError):
        failed.compute(mixed_batch())
    failed.compute(mixed_batch())
    clean.compute(mixed_batch())
    assert_same(gradients(failed), gradients(clean))


def test_further_updates_measure_their_ratio_against_the_policy_before_the_first(folder: Path) -> None:
    seen: list[LossInputs] = []

    class Watched(BinaryRL):
        def loss(self, inputs: LossInputs) -> LossOutput:
            seen.append(inputs)
            return super().loss(inputs)

    one = trainer(folder, method=Watched(BinaryRLConfig(baseline="none")), updates_per_batch=3, learning_rate=1e-4)
    one.compute([make_sample("a", 4, 6)])
    assert len(seen) == 1
    one.apply()
    assert len(seen) == 3
    first = seen[0].logp_BT.detach()
    for inputs in seen:
        torch.testing.assert_close(inputs.old_logp_BT, first, rtol=0, atol=1e-5)
    assert (seen[1].logp_BT - first).abs().max() > 1e-3
    assert (seen[2].logp_BT - seen[1].logp_BT).abs().max() > 1e-3
    assert one.step == 1


def test_a_new_method_brings_its_own_columns_and_state_without_a_change_to_the_trainer(folder: Path) -> None:
    class Imitation(BinaryRL):
        """Regresses log-probs on a per-token target, with a counter for state."""

        name = "imitation"

        def initial_state(self) -> Mapping[str, float]:
            return {"batches": 0.0}

        def columns(self, sample: Sample) -> Mapping[str, npt.NDArray[np.float32]]:
            return {"target": np.linspace(-3, -4, len(sample.response_ids), dtype=np.float32)}

        def advantages(self, rewards_B: Any, rl_mask_B: Any, groups_B: Any, state: Mapping[str, float]) -> Any:
            return np.zeros_like(rewards_B), {"batches": state["batches"] + 1}

        def loss(self, inputs: LossInputs) -> LossOutput:
            error_BT = (inputs.logp_BT - inputs.columns["target"]).square()
            return LossOutput(loss=(error_BT * inputs.mask_BT).sum() / inputs.batch_tokens, metrics={})

    one = trainer(folder, method=Imitation(BinaryRLConfig()), micro_batch_tokens=30)
    losses = []
    for _ in range(3):
        losses.append(one.compute(mixed_batch()).metrics["loss"])
        assert one.apply().changed
    assert losses[0] > losses[1] > losses[2]
    assert one.method_state == {"batches": 3.0}
