"""Log-probs read off given ids by SGLang: what to ask, and what its reply means. Pure.

SGLang reads a prompt's log-probs in the prefill, at temperature 1 only. Asked from ``start - 1`` on, it names one entry
a token, the first of them empty: that token has no prediction there. Every id in the reply is compared with the one
asked.

**Other temperatures.** ``log p_T(x) = log p(x) / T - log Z`` with ``Z = sum over the vocabulary of p^(1/T)``. The sum
needs the whole vocabulary, of which SGLang names the best ``K``: what the others add is bounded by their mass and their
largest member, and half of the bound is taken. Where that could be off by more than a tolerance, more candidates are
asked for, at worst the whole vocabulary; below 1 a few hundred do, since there the improbable ones count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clawrl.engine.protocol import ScoreRequest, Scores

TOLERANCES = {"float32": 2e-5, "bfloat16": 1e-3, "float16": 1e-3}
"""Nats by which a log-prob at another temperature may be off, by the dtype of the weights: its own noise is larger."""
FLOAT32_NOISE = 5e-6
"""How much of a distribution's mass its log-probs, being float32, may hide."""
FIRST_CANDIDATES = 128


class WrongReply(ValueError):
    """A reply that does not answer what was asked."""


def score_body(requests: Sequence[ScoreRequest], candidates: Sequence[int]) -> dict[str, Any]:
    """One batched call; ``candidates[i]`` are named at each position of request ``i``."""
    return {
        "input_ids": [np.asarray(r.ids).tolist() for r in requests],
        "return_logprob": [True] * len(requests),
        # From the token before the first that is asked for; -1 where nothing of the text itself is.
        "logprob_start_len": [r.start - 1 if r.start < len(r.ids) else -1 for r in requests],
        "top_logprobs_num": list(candidates),
        "token_ids_logprob": [list(r.token_ids) for r in requests],
        "sampling_params": [
            {"max_new_tokens": 1 if r.token_ids else 0, "temperature": r.temperature, "ignore_eos": True}
            for r in requests
        ],
    }


def first_candidates(request: ScoreRequest, vocabulary: int) -> int:
    if request.temperature == 1.0 or request.start == len(request.ids):
        return request.top_k
    return min(max(request.top_k, FIRST_CANDIDATES), vocabulary)


def read_scores(
    request: ScoreRequest,
    candidates: int,
    reply: Mapping[str, Any],
    vocabulary: int,
    tolerance: float = TOLERANCES["float32"],
) -> Scores | None:
    """The scores, or None where ``candidates`` are too few for the temperature. Raises `WrongReply`."""
    meta = reply["meta_info"]
    wanted = np.asarray(request.ids[request.start :], dtype=np.int64)
    logp_N = _prompt_logps(meta, wanted, vocabulary)
    topk_ids = topk_logps = None
    if candidates and len(wanted):
        ids_NK, logp_NK = _candidates(meta, len(wanted), candidates)
        if request.temperature != 1.0:
            log_z_N, error_N = log_partition(logp_NK, request.temperature, vocabulary)
            if candidates < vocabulary and float(error_N.max()) > tolerance:
                return None
            logp_N = logp_N / request.temperature - log_z_N
            logp_NK = logp_NK / request.temperature - log_z_N[:, None]
        topk_ids, topk_logps = ids_NK[:, : request.top_k], logp_NK[:, : request.top_k]
    return Scores(
        logps=logp_N.astype(np.float32),
        version=version_of(meta),
        topk_ids=None if topk_ids is None or not request.top_k else topk_ids.astype(np.int32),
        topk_logps=None if topk_logps is None or not request.top_k else topk_logps.astype(np.float32),
        next_logps=_next_logps(meta, request.token_ids) if request.token_ids else None,
    )


def log_partition(logp_NK: np.ndarray, temperature: float, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """``log Z`` float64[N] from the best ``K`` of ``vocabulary`` log-probs, sorted, and how far off that may be."""
    power = 1.0 / temperature
    top_N = np.exp(power * logp_NK).sum(1)
    left = vocabulary - logp_NK.shape[1]
    if left == 0:
        return np.log(top_N), np.zeros(len(logp_NK))
    # What seems to be no mass may be that much: little for one token, but flattened over a vocabulary it counts.
    mass_N = np.clip(1.0 - np.exp(logp_NK).sum(1), FLOAT32_NOISE, 1.0)
    largest_N = np.exp(logp_NK[:, -1])
    # Sharper than 1: they count most if their mass is on as few as possible. Flatter: if it is spread evenly.
    bound_N = mass_N * largest_N ** (power - 1.0) if power >= 1.0 else left * (mass_N / left) ** power
    bound_N = np.minimum(bound_N, left * largest_N**power)
    return np.log(top_N + bound_N / 2), bound_N / 2 / top_N


def version_of(meta: Mapping[str, Any]) -> int:
    try:
        return int(meta["weight_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise WrongReply(f"no version of ours: {meta.get('weight_version')!r}") from error


def _prompt_logps(meta: Mapping[str, Any], wanted: np.ndarray, vocabulary: int) -> np.ndarray:
    if not len(wanted):
        return np.empty(0, dtype=np.float64)
    entries = meta.get("input_token_logprobs") or []
    _check_ids([entry[1] for entry in entries[1:]], wanted, vocabulary)
    if entries[0][0] is not None:
        raise WrongReply("the first entry has a log-prob, where there is nothing before it")
    logp_N = np.array([entry[0] for entry in entries[1:]], dtype=np.float64)
    if np.isnan(logp_N).any():
        raise WrongReply("a token that was asked for has no log-prob")
    return logp_N


def _candidates(meta: Mapping[str, Any], count: int, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    rows = (meta.get("input_top_logprobs") or [])[1:]
    if len(rows) != count or any(row is None or len(row) != candidates for row in rows):
        raise WrongReply(f"{len(rows)} rows of candidates instead of {count} with {candidates} each")
    ids = np.array([[entry[1] for entry in row] for row in rows], dtype=np.int64)
    return ids, np.array([[entry[0] for entry in row] for row in rows], dtype=np.float64)


def _next_logps(meta: Mapping[str, Any], token_ids: Sequence[int]) -> np.ndarray:
    (row,) = meta.get("output_token_ids_logprobs") or [None]
    if row is None:
        raise WrongReply("no log-probs of the candidates for the next token")
    found = {entry[1]: entry[0] for entry in row}
    if any(token not in found for token in token_ids):
        raise WrongReply(f"log-probs of {sorted(found)} instead of {sorted(token_ids)}")
    return np.array([found[token] for token in token_ids], dtype=np.float32)


def _check_ids(found: Sequence[int], wanted: np.ndarray, vocabulary: int) -> None:
    # SGLang names the last id of a vocabulary 0 here (it takes it for an image's); the log-prob is the right one.
    named = np.where(wanted == vocabulary - 1, 0, wanted)
    if not np.array_equal(np.asarray(found), named):
        raise WrongReply(f"log-probs of the tokens {list(found)[:8]}... where {wanted[:8].tolist()}... were asked for")
