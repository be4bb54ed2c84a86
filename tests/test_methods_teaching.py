"""What a hinted teacher does to the policy, on cases small enough to work out by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clawrl.messages import Sample, TeacherTargets
from clawrl.methods.base import Method
from clawrl.methods.registry import build_method, method_class
from tests.training_samples import VOCABULARY, make_sample, noise, run_loss, taught

torch.set_num_threads(1)

TEACHING: dict[str, dict[str, Any]] = {
    "opd": {},
    "combine": {},
    **{
        f"{name} {objective} {support}": {"objective": objective, "support": support, "teacher_top_k": 4}
        for name in ("opd_topk", "combine_topk")
        for objective in ("tail_kl", "difference_clip")
        for support in ("teacher", "student", "overlap")
    },
}
EVERY_WAY = pytest.mark.parametrize("case", TEACHING)


def make(case: str, **settings: Any) -> Method:
    return build_method(method_class(case.split()[0]).Config(**TEACHING.get(case, {}), **settings))


def policy(seed: int, prompt: int, response: int) -> tuple[Sample, Tensor]:
    """A turn without a reward that the engine sampled with just these logits."""
    sample = make_sample(f"t{seed}", prompt, response, rl_mask=False, temperature=0.8, words=VOCABULARY)
    logits_RV = noise(seed, response, VOCABULARY)
    logp_RV = torch.log_softmax(logits_RV / 0.8, -1)
    ids_R = torch.from_numpy(sample.response_ids).long()
    logps = logp_RV[torch.arange(response), ids_R].float().numpy()
    return replace(sample, behaviour_logps=logps), logits_RV


@EVERY_WAY
def test_an_empty_hint_teaches_nothing(case: str) -> None:
    sample, logits = policy(0, 3, 5)
    method = make(case)
    same = run_loss(method, [taught(sample, logits[None], method.teacher_top_k)], [logits])
    assert np.abs(same.gradients[0]).max() < 1e-6 and abs(same.loss) < 1e-6
    assert same.metrics.get("opd_advantage_abs", 0.0) < 1e-6
    other = run_loss(
        method, [taught(sample, logits[None] + noise(9, 1, 5, VOCABULARY), method.teacher_top_k)], [logits]
    )
    assert np.abs(other.gradients[0]).max() > 1e-3


@EVERY_WAY
@pytest.mark.parametrize("token", [0, 4])
def test_only_the_token_that_the_teacher_differs_on_is_moved_the_first_and_the_last_included(
    case: str, token: int
) -> None:
    method = make(case)
    (short, short_logits), (long, long_logits) = policy(0, 3, 5), policy(1, 7, 6)
    hinted = short_logits.clone()
    # A little, so that the best tokens stay the best ones.
    hinted[token] += noise(2, VOCABULARY, scale=0.3)
    samples = [taught(short, hinted[None], method.teacher_top_k), taught(long, long_logits[None], method.teacher_top_k)]
    got = run_loss(method, samples, [short_logits, long_logits])
    assert got.micro_batches == 1
    moved = np.abs(got.gradients[0]).max(-1)
    assert moved[token] > 1e-3
    assert np.delete(moved, token).max() < 1e-6 and np.abs(got.gradients[1]).max() < 1e-6


@pytest.mark.parametrize("case", ["opd", "combine"])
def test_the_push_on_a_token_is_its_clipped_log_prob_difference(case: str) -> None:
    sample, logits = policy(0, 2, 3)
    ids = torch.from_numpy(sample.response_ids).long()
    wanted = [-3.0, 0.4, 2.5]
    old = torch.log_softmax(logits / 0.8, -1)[torch.arange(3), ids].numpy()
    empty = np.zeros((1, 3, 0), dtype=np.float32)
    targets = TeacherTargets(
        hints=("hint",),
        logps=(old + wanted).astype(np.float32)[None],
        topk_ids=empty.astype(np.int32),
        topk_logps=empty,
        teacher="made up",
    )
    for clip, advantages in ((1.0, [-1.0, 0.4, 1.0]), (0.0, wanted)):
        got = run_loss(make(case, advantage_clip=clip), [replace(sample, teacher=targets)], [logits])
        for t, advantage in enumerate(advantages):
            p = torch.softmax(logits[t] / 0.8, -1).numpy()
            push = -advantage / 3 * (np.eye(VOCABULARY)[ids[t]] - p) / 0.8
            np.testing.assert_allclose(got.gradients[0][t], push, rtol=0, atol=1e-6)


def one_token(probabilities: list[float], listed: dict[int, float]) -> tuple[Sample, Tensor]:
    """A one-token turn of a policy with these probabilities, taught by what the teacher lists, best first."""
    sample = make_sample("one", 2, 1, rl_mask=False, words=6)
    targets = TeacherTargets(
        hints=("hint",),
        logps=np.array([[-1.0]], dtype=np.float32),
        topk_ids=np.array([[[*listed]]], dtype=np.int32),
        topk_logps=np.log(np.array([[[*listed.values()]]])).astype(np.float32),
        teacher="made up",
    )
    return replace(sample, teacher=targets), torch.log(torch.tensor([probabilities], dtype=torch.float64))


@pytest.mark.parametrize("name", ["opd_topk", "combine_topk"])
@pytest.mark.parametrize("clip", [1.0, 0.5])
def test_an_unlisted_token_that_is_certainly_less_likely_gets_exactly_the_clip(name: str, clip: float) -> None:
    probabilities = [0.5, 0.4, 0.03, 0.03, 0.02, 0.02]
    sample, logits = one_token(probabilities, {4: 0.98, 5: 0.012})
    method = make(name, objective="difference_clip", support="student", k=2, teacher_top_k=2, difference_clip=clip)
    got = run_loss(method, [sample], [logits])
    assert got.loss == pytest.approx(clip, abs=1e-9)
    assert got.metrics["opd_unknown_weight"] == 0.0
    # d loss / d log-prob is C w; w are the two tokens' shares of their sum.
    by_logp = clip * np.array([5 / 9, 4 / 9, 0, 0, 0, 0])
    np.testing.assert_allclose(got.gradients[0][0], by_logp - by_logp.sum() * np.array(probabilities), atol=1e-9)


@pytest.mark.parametrize("name", ["opd_topk", "combine_topk"])
def test_an_unlisted_token_that_nothing_is_known_of_counts_for_nothing_and_is_reported(name: str) -> None:
    settings = {"objective": "difference_clip", "support": "student", "k": 2, "teacher_top_k": 2}
    sample, logits = one_token([0.5, 0.4, 0.03, 0.03, 0.02, 0.02], {4: 0.5, 5: 0.45})
    nothing = run_loss(make(name, **settings), [sample], [logits])
    assert nothing.loss == 0.0 and not nothing.gradients[0].any()
    assert nothing.metrics["opd_unknown_weight"] == pytest.approx(1.0)
    # Without a clip nothing unlisted is ever certain.
    sample, logits = one_token([0.5, 0.4, 0.03, 0.03, 0.02, 0.02], {4: 0.98, 5: 1e-9})
    unclipped = run_loss(make(name, **settings, difference_clip=0.0), [sample], [logits])
    assert unclipped.loss == 0.0 and unclipped.metrics["opd_unknown_weight"] == pytest.approx(1.0)
    # The likelier of two is certain, the other is not.
    sample, logits = one_token([0.88, 0.05, 0.03, 0.02, 0.01, 0.01], {4: 0.7, 5: 0.25})
    half = run_loss(make(name, **settings), [sample], [logits])
    assert half.loss == pytest.approx(0.88 / 0.93, abs=1e-9)
    assert half.metrics["opd_unknown_weight"] == pytest.approx(0.05 / 0.93)


@pytest.mark.parametrize("name", ["opd_topk", "combine_topk"])
def test_for_the_kl_an_unlisted_token_is_in_the_tail(name: str) -> None:
    # Of the policy's best three, 1 and 2 are not listed: the bins are token 0 and everything else.
    sample, logits = one_token([0.5, 0.2, 0.12, 0.08, 0.06, 0.04], {0: 0.6, 5: 0.3, 4: 0.05})
    got = run_loss(make(name, objective="tail_kl", support="student", k=3, teacher_top_k=3), [sample], [logits])
    assert got.loss == pytest.approx(0.5 * math.log(0.5 / 0.6) + 0.5 * math.log(0.5 / 0.4), abs=1e-6)
    # Within the tail everything moves in proportion.
    gradient_V, rest_V = got.gradients[0][0], logits.exp()[0, 1:].numpy()
    np.testing.assert_allclose(gradient_V[1:], -gradient_V[0] * rest_V / rest_V.sum(), rtol=0, atol=1e-9)
    assert gradient_V[0] < -1e-2


def test_the_three_ways_to_select_a_hint_differ_where_hints_agree_with_the_policy_in_different_places() -> None:
    sample, _ = policy(0, 2, 2)
    # The policy's two best tokens are 0 and 1 at both positions; [hint][position] are each teacher's two best.
    best = [[(2, 3), (0, 4)], [(0, 5), (1, 6)], [(0, 1), (7, 8)]]
    logits = noise(3, 2, VOCABULARY, scale=0.1)
    logits[:, :2] += 3.0
    hinted = noise(4, 3, 2, VOCABULARY, scale=0.1)
    for h, positions in enumerate(best):
        for t, tokens in enumerate(positions):
            hinted[h, t, list(tokens)] += 3.0
    chosen = {
        "shortest": hinted[[0]],
        # Overlap sums are 1, 2, 2: the shorter of the two best.
        "sequence_optimal": hinted[[1]],
        # Position 0: the third hint shares both. Position 1: the first two share one, the shorter wins.
        "token_optimal": torch.stack([hinted[2, 0], hinted[0, 1]])[None],
    }
    gradients = {}
    for name in ("opd_topk", "combine_topk"):
        for selection, expected in chosen.items():
            method = make(name, k=2, teacher_top_k=4, hint_selection=selection)
            got = run_loss(method, [taught(sample, hinted, 4)], [logits]).gradients[0]
            only = run_loss(method, [taught(sample, expected, 4)], [logits]).gradients[0]
            np.testing.assert_allclose(got, only, rtol=0, atol=1e-9)
            gradients[selection] = got
        values = list(gradients.values())
        assert min(np.abs(values[a] - values[b]).max() for a, b in ((0, 1), (0, 2), (1, 2))) > 1e-2
