"""Read log-probabilities off given token ids with one forward pass per batch. Pure functions over a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from clawrl.engine.protocol import ScoreRequest, Scores


def plan_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices grouped so that no group, padded to its longest, exceeds ``max_tokens`` (a lone text may)."""
    group: list[int] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        widest = max(longest, lengths[index])
        if group and widest * (len(group) + 1) > max_tokens:
            yield group
            group, widest = [], lengths[index]
        group.append(index)
        longest = widest
    if group:
        yield group


@torch.no_grad()
def score_batch(model: PreTrainedModel, requests: Sequence[ScoreRequest], version: int) -> list[Scores]:
    """`Scores` for each request; fp32 log-softmax of ``logits / temperature``. Right-padded, so positions agree."""
    width = max(len(request.ids) for request in requests)
    ids_BT = torch.zeros(len(requests), width, dtype=torch.long, device=model.device)
    mask_BT = torch.zeros_like(ids_BT)
    for row, request in enumerate(requests):
        ids_BT[row, : len(request.ids)] = torch.from_numpy(np.asarray(request.ids, dtype=np.int64))
        mask_BT[row, : len(request.ids)] = 1
    # Only the positions that predict something asked for go through the vocabulary projection.
    first = min(request.start for request in requests) - 1
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, logits_to_keep=width - first, use_cache=False).logits
    return [
        _read_row(logits_V, request, first, version) for logits_V, request in zip(logits_BTV, requests, strict=True)
    ]


def _read_row(logits_TV: torch.Tensor, request: ScoreRequest, first: int, version: int) -> Scores:
    begin, end = request.start - 1 - first, len(request.ids) - first
    logp_NV = (logits_TV[begin:end].float() / request.temperature).log_softmax(-1)
    targets = torch.from_numpy(np.asarray(request.ids[request.start :], dtype=np.int64))
    logps = logp_NV[:-1].gather(-1, targets[:, None].to(logp_NV.device))[:, 0]
    topk = logp_NV[:-1].topk(request.top_k, dim=-1) if request.top_k else None
    candidates = torch.tensor(request.token_ids, dtype=torch.long, device=logp_NV.device)
    return Scores(
        logps=logps.cpu().numpy().astype(np.float32),
        version=version,
        topk_ids=topk.indices.cpu().numpy().astype(np.int32) if topk else None,
        topk_logps=topk.values.cpu().numpy().astype(np.float32) if topk else None,
        next_logps=logp_NV[-1, candidates].cpu().numpy() if request.token_ids else None,
    )
