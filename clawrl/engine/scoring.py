"""Read log-probabilities off given token ids with one forward pass per batch.

Requests that begin with the same shared ids go together, and what the model computed for those ids is kept for the
next ones (`Prefixes`). That saves work and changes nothing else: a model whose cache is not plain keys and values, and
a request that asks about the shared ids themselves, are computed in full.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

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


def shared_prefix(request: ScoreRequest) -> bytes:
    """The shared ids as int64 bytes, where the request can go without computing them; empty where it cannot."""
    # The last id before `start` predicts it, so it must be computed.
    usable = request.shared if 0 < request.shared < request.start else 0
    return np.asarray(request.ids[:usable], dtype=np.int64).tobytes()


def plan_scoring(requests: Sequence[ScoreRequest], max_tokens: int) -> Iterator[list[int]]:
    """Indices for `score_batch`: as `plan_batches`, and with one shared prefix in a group."""
    by_prefix: dict[bytes, list[int]] = {}
    for index, request in enumerate(requests):
        by_prefix.setdefault(shared_prefix(request), []).append(index)
    for indices in by_prefix.values():
        for group in plan_batches([len(requests[index].ids) for index in indices], max_tokens):
            yield [indices[place] for place in group]


class Prefixes:
    """Keys and values of the last few shared prefixes, each of one weights version."""

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[int, bytes], DynamicCache | None] = OrderedDict()

    def clear(self) -> None:
        self._kept.clear()

    def cache(self, model: PreTrainedModel, prefix: bytes, version: int, rows: int) -> DynamicCache | None:
        """A fresh cache of ``prefix`` for ``rows`` texts; None where this model's cache cannot be shared."""
        key = version, prefix
        kept = self._kept.pop(key) if key in self._kept else _compute_prefix(model, prefix)
        self._kept[key] = kept
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        if kept is None:
            return None
        fresh = DynamicCache()
        for index, layer in enumerate(kept.layers):
            keys, values = layer.keys, layer.values
            fresh.update(keys.expand(rows, *keys.shape[1:]), values.expand(rows, *values.shape[1:]), index)
        return fresh


@torch.no_grad()
def _compute_prefix(model: PreTrainedModel, prefix: bytes) -> DynamicCache | None:
    cache = DynamicCache(config=model.config)
    # Sliding windows and recurrent states are left alone: what they keep of a prefix is not the prefix.
    if not all(type(layer) is DynamicLayer for layer in cache.layers):
        return None
    ids = torch.from_numpy(np.frombuffer(prefix, dtype=np.int64).copy())[None].to(model.device)
    model(input_ids=ids, use_cache=True, logits_to_keep=1, **{_cache_argument(model): cache})
    return cache if all(layer.is_initialized for layer in cache.layers) else None


def _cache_argument(model: PreTrainedModel) -> str:
    """Transformers is renaming it, and warns of the old name where it knows the new one."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.no_grad()
def score_batch(
    model: PreTrainedModel, requests: Sequence[ScoreRequest], version: int, prefixes: Prefixes
) -> list[Scores]:
    """`Scores` for each request; fp32 log-softmax of ``logits / temperature``. Right-padded, so positions agree.

    All requests have the same `shared_prefix`.
    """
    prefix = shared_prefix(requests[0])
    cache = prefixes.cache(model, prefix, version, len(requests)) if prefix else None
    skip = 0 if cache is None else cache.get_seq_length()
    width = max(len(request.ids) for request in requests)
    ids_BT = torch.zeros(len(requests), width, dtype=torch.long, device=model.device)
    mask_BT = torch.zeros_like(ids_BT)
    for row, request in enumerate(requests):
        ids_BT[row, : len(request.ids)] = torch.from_numpy(np.asarray(request.ids, dtype=np.int64))
        mask_BT[row, : len(request.ids)] = 1
    # Only the positions that predict something asked for go through the vocabulary projection.
    first = min(request.start for request in requests) - 1
    logits_BTV = model(
        input_ids=ids_BT[:, skip:],
        attention_mask=mask_BT,
        logits_to_keep=width - first,
        use_cache=cache is not None,
        **({} if cache is None else {_cache_argument(model): cache}),
    ).logits
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
