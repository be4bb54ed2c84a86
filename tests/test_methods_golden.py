"""Each method, from samples to gradients, against plain float64 loops over samples, tokens and ids."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from clawrl.messages import Sample
from clawrl.methods.registry import build_method, method_class
from tests.training_samples import VOCABULARY, mixed_batch, run_loss

torch.set_num_threads(1)

MIXED = {"kl_coef": 0.3, "entropy_coef": 0.05}
CASES: dict[str, dict[str, Any]] = {
    "binary_rl": {},
    "binary_rl by token, k1": {"aggregation": "token_mean", "kl_estimator": "k1", **MIXED},
    "binary_rl, k2": {"kl_estimator": "k2", "tis_clip": 1.1, "eps_clip": 0.05, "eps_clip_high": 0.6, **MIXED},
    "opd": {"kl_estimator": "k3", **MIXED},
    "opd unclipped": {"advantage_clip": 0.0, "aggregation": "token_mean"},
    "combine": {"w_rl": 0.7, "w_opd": 1.3, "advantage_clip": 0.4, **MIXED},
    "opd_topk": {"teacher_top_k": 5},
    "opd_topk student": {"support": "student", "k": 3, "hint_selection": "token_optimal", **MIXED},
    "opd_topk overlap": {"support": "overlap", "aggregation": "token_mean", "hint_selection": "shortest"},
    "opd_topk difference": {"objective": "difference_clip", "support": "student", "difference_clip": 0.5},
    "combine_topk": {"w_rl": 0.7, "w_opd": 1.3, **MIXED},
    "combine_topk overlap": {"support": "overlap", "hint_selection": "token_optimal", "difference_clip": 2.0},
    "combine_topk teacher unclipped": {"support": "teacher", "difference_clip": 0.0, "aggregation": "token_mean"},
    "combine_topk tail": {"objective": "tail_kl", "w_opd": 0.5, "k": 2},
}


class Golden:
    """The loss written down from the formulas, one token and one id at a time."""

    def __init__(
        self, config: Any, samples: list[Sample], advantages: list[float], now: Any, old: Any, ref: Any
    ) -> None:
        self.c, self.samples, self.advantages = config, samples, advantages
        self.counts = [sum(s.mask) if s.opd_mask or s.rl_mask else 0 for s in samples]
        self.now, self.old, self.ref = (
            [[self.logp(i, row) for row in logits] for i, logits in enumerate(side)] for side in (now, old, ref)
        )

    def logp(self, i: int, logits_V: np.ndarray) -> np.ndarray:
        scaled = logits_V / float(np.float32(self.samples[i].temperature))
        return scaled - math.log(sum(math.exp(x) for x in scaled))

    def loss(self, now: list[np.ndarray]) -> float:
        return sum(self.token(i, t, row) for i, logits in enumerate(now) for t, row in enumerate(logits))

    def gradient(self, now: list[np.ndarray], h: float = 1e-6) -> list[np.ndarray]:
        out = [np.zeros(logits.shape) for logits in now]
        for i, logits in enumerate(now):
            for t, v in np.ndindex(*logits.shape):
                nudge = h * np.eye(VOCABULARY)[v]
                out[i][t, v] = (self.token(i, t, logits[t] + nudge) - self.token(i, t, logits[t] - nudge)) / (2 * h)
        return out

    def token(self, i: int, t: int, logits_V: np.ndarray) -> float:
        """What one token adds to the loss of the batch."""
        if not self.counts[i] or not self.samples[i].mask[t]:
            return 0.0
        token, logp = self.samples[i].response_ids[t], self.logp(i, logits_V)
        value = self.objective(i, t, logp)
        if self.c.kl_coef:
            d = logp[token] - self.ref[i][t][token]
            # The factor of k1 stays what it is while the policy moves.
            held = math.exp(logp[token] - self.old[i][t][token]) * (self.now[i][t][token] - self.ref[i][t][token])
            value += self.c.kl_coef * {"k1": held, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[self.c.kl_estimator]
        value -= self.c.entropy_coef * -sum(math.exp(x) * x for x in logp)
        if self.c.aggregation == "token_mean":
            return value / sum(self.counts)
        return value / self.counts[i] / sum(count > 0 for count in self.counts)

    def kl(self) -> float:
        """The estimate that is reported: a mean over the tokens that train."""
        found = []
        for i, sample in enumerate(self.samples):
            for t in np.flatnonzero(sample.mask) if self.counts[i] else ():
                d = (self.now[i][t] - self.ref[i][t])[sample.response_ids[t]]
                found.append({"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[self.c.kl_estimator])
        return sum(found) / len(found)

    def objective(self, i: int, t: int, logp: np.ndarray) -> float:
        sample, c = self.samples[i], self.c
        token, reward = sample.response_ids[t], self.advantages[i] if sample.rl_mask else 0.0
        if c.name == "binary_rl":
            return self.sampled(i, t, logp, reward)
        if c.name in ("opd", "combine"):
            difference = 0.0
            if sample.teacher:
                difference = self.limit(float(sample.teacher.logps[0, t]) - self.old[i][t][token], c.advantage_clip)
            w_rl, w_opd = (0.0, 1.0) if c.name == "opd" else (c.w_rl, c.w_opd)
            return self.sampled(i, t, logp, w_rl * reward + w_opd * difference)
        distilled = 0.0
        if sample.teacher:
            distilled = self.tail(i, t, logp) if c.objective == "tail_kl" else self.difference(i, t, logp)
        if c.name == "opd_topk":
            return distilled
        return c.w_rl * self.sampled(i, t, logp, reward) + c.w_opd * distilled

    def sampled(self, i: int, t: int, logp: np.ndarray, advantage: float) -> float:
        token = self.samples[i].response_ids[t]
        old, behaviour = self.old[i][t][token], float(self.samples[i].behaviour_logps[t])
        return min(math.exp(old - behaviour), self.c.tis_clip) * self.clipped(logp[token] - old, advantage)

    def clipped(self, log_ratio: float, advantage: float) -> float:
        ratio = math.exp(log_ratio)
        limited = min(max(ratio, 1 - self.c.eps_clip), 1 + self.c.eps_clip_high)
        return max(-ratio * advantage, -limited * advantage)

    @staticmethod
    def limit(difference: float, clip: float) -> float:
        return min(max(difference, -clip), clip) if clip else difference

    def listed(self, i: int, t: int, hint: int) -> dict[int, float]:
        """What the teacher lists, best first."""
        teacher = self.samples[i].teacher
        assert teacher is not None
        return dict(zip(teacher.topk_ids[hint, t].tolist(), teacher.topk_logps[hint, t].tolist(), strict=True))

    def student(self, i: int, t: int) -> list[int]:
        return sorted(range(VOCABULARY), key=lambda v: -self.old[i][t][v])[: self.c.k]

    def hint(self, i: int, t: int) -> int:
        teacher = self.samples[i].teacher
        assert teacher is not None
        if self.c.hint_selection == "shortest":
            return 0
        steps = range(len(self.old[i])) if self.c.hint_selection == "sequence_optimal" else [t]
        overlaps = [
            sum(len({*self.student(i, u)} & {*list(self.listed(i, u, h))[: self.c.k]}) for u in steps)
            for h in range(len(teacher.hints))
        ]
        return overlaps.index(max(overlaps))

    def support(self, i: int, t: int) -> tuple[list[int], dict[int, float]]:
        listed = self.listed(i, t, self.hint(i, t))
        student, teacher = self.student(i, t), list(listed)[: self.c.k]
        chosen = {"student": student, "teacher": teacher, "overlap": [v for v in student if v in teacher]}
        return chosen[self.c.support], listed

    def tail(self, i: int, t: int, logp: np.ndarray) -> float:
        support, listed = self.support(i, t)
        bins = [(math.exp(logp[v]), math.exp(listed[v])) for v in support if v in listed]
        if not bins:
            return 0.0
        bins.append((1 - sum(p for p, _ in bins), 1 - sum(q for _, q in bins)))
        return sum(p * math.log(p / q) for p, q in bins)

    def difference(self, i: int, t: int, logp: np.ndarray) -> float:
        support, listed = self.support(i, t)
        old, clip = self.old[i][t], self.c.difference_clip
        total, value = sum(math.exp(old[v]) for v in support), 0.0
        for v in support:
            if v in listed:
                difference = self.limit(listed[v] - old[v], clip)
            elif clip and min(listed.values()) - old[v] <= -clip:
                difference = -clip
            else:
                continue
            value += self.clipped(logp[v] - old[v], math.exp(old[v]) / total * difference)
        return value


@pytest.mark.parametrize("case", CASES)
def test_a_method_has_the_loss_and_the_gradient_of_its_formula_however_the_batch_is_split(case: str) -> None:
    name = case.replace(",", " ").split()[0]
    wide = {"teacher_top_k": 4, **CASES[case]} if "topk" in name else CASES[case]
    method = build_method(method_class(name).Config(**wide))
    samples, now, old, ref = mixed_batch(method)
    whole = run_loss(method, samples, now, old, ref, state={"baseline": 0.25})
    golden = Golden(
        method_class(name).Config(**wide),
        samples,
        [0.75, 0.0, -0.75, -1.25],
        *([logits.numpy() for logits in side] for side in (now, old, ref)),
    )
    plain = [logits.numpy() for logits in now]
    assert whole.loss == pytest.approx(golden.loss(plain), abs=1e-6)
    expected = golden.gradient(plain)
    assert max(np.abs(gradient).max() for gradient in expected) > 1e-2
    assert {key for key, value in whole.metrics.items() if value == 0.0} <= {"opd_hint", "opd_unknown_weight"}
    if golden.c.kl_coef:
        assert whole.metrics["kl"] == pytest.approx(golden.kl(), abs=1e-6)
    for mine, theirs in zip(whole.gradients, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)

    split = run_loss(method, samples, now, old, ref, state={"baseline": 0.25}, micro_batch_tokens=16)
    assert whole.micro_batches == 1 and split.micro_batches > 1
    assert split.loss == pytest.approx(whole.loss, abs=1e-9)
    assert split.metrics == pytest.approx(whole.metrics, abs=1e-6)
    for mine, theirs in zip(split.gradients, whole.gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)
