"""Samples, hinted teachers and naive log-probs for the tests of methods and of training.

`run_loss` puts a method's whole way (advantages, columns, micro-batches, `frozen`, `loss`) through made-up logits:
``logits[i]`` float64[R, V] is what the policy expects at each response token of sample ``i``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clawrl.loss import TokenDistribution
from clawrl.messages import Sample, TeacherTargets, TurnId, VersionSpan
from clawrl.methods.base import JudgementNeed, LossInputs, Method
from clawrl.training.batch import MicroBatch, Row, Split, make_micro_batches
from clawrl.training.forward import PolicyReader
from clawrl.training.shards import DataParallel

WORDS = 390
"""Token ids below this exist in the tiny model's vocabulary."""

VOCABULARY = 9
"""Of the made-up logits."""


def make_sample(
    name: str,
    prompt: int,
    response: int,
    *,
    reward: float = 1.0,
    temperature: float = 1.0,
    mask: Sequence[bool] | None = None,
    logps: Sequence[float] | None = None,
    rl_mask: bool = True,
    group: str | None = None,
    words: int = WORDS,
) -> Sample:
    """Random tokens that depend on ``name`` alone. Behaviour log-probs are -5 (near uniform) unless given."""
    rng = np.random.default_rng(list(name.encode()))
    return Sample(
        turn_id=TurnId(name),
        prompt_ids=rng.integers(3, words, prompt).astype(np.int32),
        response_ids=rng.integers(3, words, response).astype(np.int32),
        behaviour_logps=np.array([-5.0] * response if logps is None else logps, dtype=np.float32),
        mask=np.array([True] * response if mask is None else mask, dtype=np.bool_),
        spans=(VersionSpan(start=0, end=response, version=1),) if response else (),
        temperature=temperature,
        reward=reward,
        rl_mask=rl_mask,
        group=group,
    )


def taught(sample: Sample, logits_HRV: Tensor, top_k: int) -> Sample:
    """The sample with a teacher that has these logits under each of H hints."""
    logp_HRV = torch.log_softmax(logits_HRV.double() / sample.temperature, -1)
    ids_R = torch.from_numpy(sample.response_ids).long()
    best = logp_HRV.topk(top_k, -1)
    targets = TeacherTargets(
        hints=tuple("hint" + "!" * h for h in range(len(logits_HRV))),
        logps=logp_HRV.gather(-1, ids_R.expand(len(logits_HRV), -1)[..., None])[..., 0].float().numpy(),
        topk_ids=best.indices.int().numpy(),
        topk_logps=best.values.float().numpy(),
        teacher="made up",
    )
    return replace(sample, teacher=targets)


@torch.no_grad()
def trainer_logps(model: Any, samples: Sequence[Sample], tokens: int = 1000, **reading: Any) -> list[np.ndarray]:
    """Per sample the log-probs of its unmasked tokens as the trainer reads them, in passes of at most ``tokens``."""
    reader = PolicyReader(model, **reading)
    rows = [Row(sample=sample, mask=sample.mask, columns={}, advantage=0.0) for sample in samples]
    found: dict[int, np.ndarray] = {}
    for batch in make_micro_batches(rows, reader.split(tokens, DataParallel()), next(model.parameters()).device):
        logp_BT = reader.read(batch).logp(batch.targets_BT)
        for place, index in enumerate(batch.index):
            found[index] = logp_BT[place][batch.mask_BT[place]].cpu().numpy()
    return [found[index] for index in range(len(samples))]


@torch.no_grad()
def naive_logits(model: torch.nn.Module, sample: Sample) -> Tensor:
    """float32[R, V], one response token at a time, unpadded, straight from the definition."""
    ids = [*sample.prompt_ids.tolist()]
    logits = []
    for token in sample.response_ids.tolist():
        logits.append(model(input_ids=torch.tensor([ids])).logits[0, -1].float())
        ids.append(token)
    return torch.stack(logits)


def naive_logps(model: torch.nn.Module, sample: Sample) -> list[float]:
    logp_RV = torch.log_softmax(naive_logits(model, sample) / sample.temperature, -1)
    return [logp_V[token].item() for logp_V, token in zip(logp_RV, sample.response_ids.tolist(), strict=True)]


def noise(seed: int, *shape: int, scale: float = 1.5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def mixed_batch(method: Method) -> tuple[list[Sample], list[Tensor], list[Tensor], list[Tensor]]:
    """``(samples, now, old, ref)``: rewarded and taught, only taught, only rewarded, both; 1 or 3 hints.

    A method that does not look at rewards, or at teachers, makes samples without, and one here has then neither.
    """
    rewarded = JudgementNeed.VERDICT in method.needs
    shapes = {"a": (4, 3), "b": (2, 5), "c": (6, 2), "d": (3, 4)}
    old = [noise(i, response, VOCABULARY) for i, (_, response) in enumerate(shapes.values())]
    samples = []
    for i, (name, (prompt, response)) in enumerate(shapes.items()):
        sample = make_sample(
            name,
            prompt,
            response,
            reward=[1.0, 0.0, -0.5, -1.0][i],
            rl_mask=name != "b",
            temperature=[0.7, 1.0, 1.3, 0.9][i],
            logps=(-1.0 - noise(10 + i, response, scale=0.5).abs()).tolist(),
            mask=[name != "d" or t != 1 for t in range(response)],
            words=VOCABULARY,
            group="g",
        )
        hints = {"a": 3, "b": 1, "c": 0, "d": 3}[name]
        if hints and JudgementNeed.TEACHER in method.needs:
            # The later hints ask for less, so that overlap prefers them.
            asked = noise(20 + i, hints, response, VOCABULARY) / torch.arange(1, hints + 1)[:, None, None]
            sample = taught(sample, old[i] + asked, method.teacher_top_k)
        samples.append(replace(sample, rl_mask=sample.rl_mask and rewarded))
    now = [logits + noise(30 + i, *logits.shape, scale=0.4) for i, logits in enumerate(old)]
    return samples, now, old, [logits + noise(40 + i, *logits.shape, scale=0.5) for i, logits in enumerate(old)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``gradients[i]`` float64[R, V] is d loss / d logits of sample ``i``."""

    loss: float
    gradients: list[np.ndarray]
    metrics: dict[str, float]
    advantages: list[float]
    micro_batches: int


def run_loss(
    method: Method,
    samples: Sequence[Sample],
    now: Sequence[Tensor],
    old: Sequence[Tensor] | None = None,
    ref: Sequence[Tensor] | None = None,
    *,
    micro_batch_tokens: int = 10_000,
    state: Mapping[str, float] | None = None,
) -> Run:
    """``old`` are the logits before the first update (those of ``now`` unless given), ``ref`` the frozen start's."""
    advantages_B, _ = method.advantages(
        np.array([sample.reward for sample in samples]),
        np.array([sample.rl_mask for sample in samples]),
        [sample.group for sample in samples],
        method.initial_state() if state is None else state,
    )
    rows = [
        Row(sample=s, mask=method.token_mask(s), columns=method.columns(s), advantage=float(a))
        for s, a in zip(samples, advantages_B, strict=True)
    ]
    batches = make_micro_batches(rows, Split(tokens=micro_batch_tokens), torch.device("cpu"))
    leaves = [logits.detach().clone().requires_grad_() for logits in now]
    total: Any = 0.0
    metrics: dict[str, float] = {}
    for batch in batches:
        policy = _policy(batch, samples, leaves)
        with torch.no_grad():
            before = policy if old is None else _policy(batch, samples, old)
            old_logp_BT, frozen = before.logp(batch.targets_BT), method.frozen(before, batch.columns)
        output = method.loss(
            LossInputs(
                logp_BT=policy.logp(batch.targets_BT),
                old_logp_BT=old_logp_BT,
                behaviour_logp_BT=batch.behaviour_logp_BT,
                ref_logp_BT=None if ref is None else _policy(batch, samples, ref).logp(batch.targets_BT),
                mask_BT=batch.mask_BT,
                advantage_B=batch.advantage_B,
                batch_tokens=sum(int(row.mask.sum()) for row in rows),
                batch_samples=sum(len(each.index) for each in batches),
                policy=policy,
                columns=batch.columns,
                frozen=frozen,
            )
        )
        total = total + output.loss
        for key, share in output.metrics.items():
            metrics[key] = metrics.get(key, 0.0) + share.item()
    total.backward()
    return Run(
        loss=total.item(),
        gradients=[np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy() for leaf in leaves],
        metrics=metrics,
        advantages=advantages_B.tolist(),
        micro_batches=len(batches),
    )


def _policy(batch: MicroBatch, samples: Sequence[Sample], logits: Sequence[Tensor]) -> TokenDistribution:
    # What stands outside the response is noise of its own, so that a loss which looks there is caught.
    noise = torch.Generator().manual_seed(len(batch.index))
    shape = (*batch.targets_BT.shape, logits[0].shape[-1])
    rows = []
    for row_TV, i in zip(3 * torch.randn(shape, generator=noise, dtype=torch.float64), batch.index, strict=True):
        rows.append(torch.cat([logits[i], row_TV[len(logits[i]) :]]))
    return TokenDistribution.of_logits(torch.stack(rows), batch.temperature_B)
