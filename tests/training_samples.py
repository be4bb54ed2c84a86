"""Samples and naive log-probs for the tests of training."""

from collections.abc import Sequence

import numpy as np
import torch

from clawrl.messages import Sample, TurnId, VersionSpan

WORDS = 390
"""Token ids below this exist in the tiny model's vocabulary."""


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
) -> Sample:
    """Random tokens that depend on ``name`` alone. Behaviour log-probs are -5 (near uniform) unless given."""
    rng = np.random.default_rng(list(name.encode()))
    return Sample(
        turn_id=TurnId(name),
        prompt_ids=rng.integers(3, WORDS, prompt).astype(np.int32),
        response_ids=rng.integers(3, WORDS, response).astype(np.int32),
        behaviour_logps=np.array([-5.0] * response if logps is None else logps, dtype=np.float32),
        mask=np.array([True] * response if mask is None else mask, dtype=np.bool_),
        spans=(VersionSpan(start=0, end=response, version=1),) if response else (),
        temperature=temperature,
        reward=reward,
        rl_mask=rl_mask,
    )


@torch.no_grad()
def naive_logps(model: torch.nn.Module, sample: Sample) -> list[float]:
    """One response token at a time, unpadded, straight from the definition."""
    ids = [*sample.prompt_ids.tolist()]
    logps = []
    for token in sample.response_ids.tolist():
        logits_V = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        logps.append(torch.log_softmax(logits_V / sample.temperature, -1)[token].item())
        ids.append(token)
    return logps
