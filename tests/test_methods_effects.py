"""No setting is for show, and a turn contributes what is known of it and nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from clawrl.methods.base import Method
from clawrl.methods.registry import build_method, builtin_names, method_class
from tests.training_samples import Run, mixed_batch, run_loss

torch.set_num_threads(1)

BASE: dict[str, Any] = {
    "kl_coef": 0.1,
    "baseline": "group",
    "group_size": 2,
    "objective": "difference_clip",
    "support": "student",
    "teacher_top_k": 4,
}
OTHER: dict[str, Any] = {
    # Whichever ratios the batch has, one of the two clips more, or fewer, of them.
    "eps_clip": (0.02, 0.9),
    "eps_clip_high": (0.02, 3.0),
    "tis_clip": 0.5,
    "kl_coef": 0.4,
    "kl_estimator": "k1",
    "entropy_coef": 0.1,
    "aggregation": "token_mean",
    "baseline": "leave_one_out",
    "normalize": True,
    "w_rl": 0.5,
    "w_opd": 0.5,
    "advantage_clip": 0.3,
    "k": 2,
    "teacher_top_k": 6,
    "support": "overlap",
    "hint_selection": "token_optimal",
    "difference_clip": 0.3,
    "objective": "tail_kl",
}
TOP_K = ("opd_topk", "combine_topk")
NOT_IN_THE_LOSS = {"name", "group_size", "baseline_decay"}
SETTINGS = [
    (name, field)
    for name in builtin_names()
    for field in method_class(name).Config.model_fields
    if field not in NOT_IN_THE_LOSS
]


def make(name: str, **settings: Any) -> Method:
    config = method_class(name).Config
    return build_method(config(**{key: value for key, value in settings.items() if key in config.model_fields}))


def run(method: Method) -> Run:
    samples, now, old, ref = mixed_batch(method)
    return run_loss(method, samples, now, old, ref)


def largest_difference(left: Run, right: Run) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(left.gradients, right.gradients, strict=True))


@pytest.mark.parametrize(("name", "field"), SETTINGS, ids=lambda value: str(value))
def test_every_setting_changes_the_gradient(name: str, field: str) -> None:
    base, others = run(make(name, **BASE)), OTHER[field] if isinstance(OTHER[field], tuple) else (OTHER[field],)
    assert max(largest_difference(base, run(make(name, **{**BASE, field: other}))) for other in others) > 1e-3


@pytest.mark.parametrize(
    ("name", "field"),
    [("opd_topk", "eps_clip"), ("opd_topk", "eps_clip_high"), *((f, "difference_clip") for f in TOP_K)],
)
def test_a_setting_that_tail_kl_does_not_read_is_refused_with_the_remedy(name: str, field: str) -> None:
    config = method_class(name).Config
    with pytest.raises(ValidationError, match=f"{field} is not read by objective tail_kl; remove it, or use diff"):
        config(objective="tail_kl", **{field: 0.5})
    assert getattr(config(objective="difference_clip", **{field: 0.5}), field) == 0.5
    untouched = config(objective="tail_kl")
    assert config.model_validate(untouched.model_dump()) == untouched


def test_the_clip_of_the_reward_counts_beside_tail_kl() -> None:
    base, clipped = (
        run(make("combine_topk", **{**BASE, "objective": "tail_kl", "eps_clip": clip})) for clip in OTHER["eps_clip"]
    )
    assert largest_difference(base, clipped) > 1e-3


@pytest.mark.parametrize(
    ("name", "same_as", "weights"),
    [
        ("combine", "binary_rl", {"w_rl": 1.0, "w_opd": 0.0}),
        ("combine", "opd", {"w_rl": 0.0, "w_opd": 1.0}),
        ("combine_topk", "binary_rl", {"w_rl": 1.0, "w_opd": 0.0}),
        ("combine_topk", "opd_topk", {"w_rl": 0.0, "w_opd": 1.0}),
    ],
)
@pytest.mark.parametrize("rewarded", [True, False])
def test_a_turn_with_a_reward_or_a_teacher_alone_contributes_exactly_that_term(
    name: str, same_as: str, weights: dict[str, float], rewarded: bool
) -> None:
    settings = {**BASE, "kl_coef": 0.0, "baseline": "none", "group_size": 1}
    both, one = make(name, **settings, w_rl=0.6, w_opd=1.7), make(same_as, **settings)
    samples, now, old, _ = mixed_batch(both)
    first = samples[0]
    alone = replace(first, teacher=None) if rewarded else replace(first, rl_mask=False)
    mixed = run_loss(both, [alone], now[:1], old[:1])
    term = {"binary_rl": 0.6, "opd": 1.7, "opd_topk": 1.7}[same_as]
    # What the other method makes of the same turn: it looks at one half only.
    half = replace(first, teacher=None) if same_as == "binary_rl" else replace(first, rl_mask=False)
    other = run_loss(one, [half], now[:1], old[:1])
    matches = np.allclose(mixed.gradients[0], term * other.gradients[0], rtol=0, atol=1e-7)
    assert matches is (rewarded == (same_as == "binary_rl"))
    # With both at hand a weight of zero silences one term.
    silenced = run_loss(make(name, **settings, **weights), [first], now[:1], old[:1])
    np.testing.assert_allclose(silenced.gradients[0], other.gradients[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", builtin_names())
def test_every_term_on_sampled_tokens_is_weighed_by_who_sampled_them_and_no_other_is(name: str) -> None:
    settings = {**BASE, "kl_coef": 0.0, "baseline": "none", "group_size": 1}
    samples, now, old, _ = mixed_batch(make(name, **settings))
    stale = [replace(sample, behaviour_logps=sample.behaviour_logps - 0.4) for sample in samples]

    def moved(**weights: float) -> float:
        method = make(name, **settings, **weights)
        return largest_difference(run_loss(method, samples, now, old), run_loss(method, stale, now, old))

    # Where a token would have to have been sampled by somebody else, the gradient says so.
    assert (moved() > 1e-3) is (name != "opd_topk")
    if name in TOP_K:
        assert moved(w_rl=0.0) == 0.0, "a distribution was not sampled by anybody"


@pytest.mark.parametrize("name", ["combine", "combine_topk"])
@pytest.mark.parametrize("objective", ["difference_clip", "tail_kl"])
def test_a_turn_without_a_teacher_next_to_a_taught_one_is_not_taught_by_zeros(name: str, objective: str) -> None:
    method = make(name, **{**BASE, "kl_coef": 0.0, "objective": objective}, w_rl=0.0)
    samples, now, old, _ = mixed_batch(method)
    got = run_loss(method, samples, now, old)
    for sample, gradient in zip(samples, got.gradients, strict=True):
        assert bool(np.abs(gradient).max() > 1e-3) is sample.opd_mask
        if not sample.opd_mask:
            assert not gradient.any()


@pytest.mark.parametrize("name", ["combine_topk", "opd_topk"])
def test_samples_with_different_numbers_of_hints_do_not_disturb_each_other(name: str) -> None:
    method = make(name, **{**BASE, "kl_coef": 0.0, "baseline": "none", "group_size": 1})
    samples, now, old, _ = mixed_batch(method)
    taught = [i for i, sample in enumerate(samples) if sample.teacher]
    assert {len(samples[i].teacher.hints) for i in taught} == {1, 3}  # type: ignore[union-attr]
    together = run_loss(method, [samples[i] for i in taught], [now[i] for i in taught], [old[i] for i in taught])
    for place, i in enumerate(taught):
        alone = run_loss(method, [samples[i]], [now[i]], [old[i]])
        np.testing.assert_allclose(together.gradients[place] * len(taught), alone.gradients[0], rtol=0, atol=1e-9)


def test_overlap_and_support_are_reported_of_taught_tokens_only() -> None:
    method = make("combine_topk", **{**BASE, "support": "overlap", "aggregation": "token_mean"})
    samples, _, old, _ = mixed_batch(method)
    # An absent teacher lists nothing, not token 0, however likely that is.
    logits = old[2].clone()
    logits[:, 0] = 9.0
    untaught = run_loss(method, [samples[2]], [logits], [logits]).metrics
    assert untaught["opd_overlap"] == untaught["opd_support"] == untaught["opd_unknown_weight"] == 0.0
