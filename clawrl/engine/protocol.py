"""The Engine protocol: what a rollout or judge replica needs from whatever runs the model.

Token-in, token-out. `Engine.generate` streams exactly the ids that were sampled, each with its
log-probability and the policy version that sampled it; `Engine.score` reads log-probabilities off
given ids. Weights arrive in three calls, ``prepare -> receive -> commit`` or ``abort``, which never wait
for generation slots. One weight transaction is open at a time; a new ``prepare`` aborts the one before.

Engines declare how a version becomes visible (`CommitForm`): ``STAGED`` engines keep the old version
serving until a commit has succeeded, ``IN_PLACE`` engines hold their requests from ``receive`` to ``commit``, and load
the last good snapshot again when anything fails in between.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from clawrl.messages import FinishReason, LogProbs, SamplingParams, TokenIds, VersionSpan, WeightKind, WeightManifest
from clawrl.weights.sources import WeightSource


class CommitForm(enum.StrEnum):
    STAGED = "staged"
    IN_PLACE = "in_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """``ranks`` is how many members of a broadcast the engine is; ``reads_snapshots``: `Engine.prepare` reads them."""

    commit_form: CommitForm
    weight_kinds: frozenset[WeightKind]
    context_length: int
    max_running_requests: int
    scores: bool
    ranks: int = 1
    reads_snapshots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """``prompt_ids`` int32[P]; generation ends at an end-of-sequence token, a stop string or ``max_tokens``.

    ``place_within_s`` bounds the wait for a slot, not what follows: `NoPlace`.
    """

    request_id: str
    prompt_ids: TokenIds
    sampling: SamplingParams
    place_within_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Newly sampled tokens, all by ``version``. The last chunk carries ``finish_reason`` and may be empty.

    An engine that learns only at the end which version sampled what says so with ``spans``, in the last chunk: they
    cover the whole response and outrank the versions of the chunks.
    """

    ids: TokenIds
    logps: LogProbs
    version: int
    finish_reason: FinishReason | None = None
    spans: tuple[VersionSpan, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Ask for log-probs of ``ids[start:]`` given what stands before each, at ``temperature``.

    ``start >= 1``: the first token of a text has no prediction. ``token_ids`` asks, at the position after
    the last id, for the log-probs of these candidates; ``start == len(ids)`` asks for nothing else. The first
    ``shared`` ids recur in many requests: an engine may keep what it computed for them, which never changes the result.
    """

    ids: TokenIds
    start: int
    temperature: float = 1.0
    top_k: int = 0
    token_ids: tuple[int, ...] = ()
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """``logps`` float32[N] for ``ids[start:]``; ``topk_*`` [N, k], ``next_logps`` float32[len(token_ids)]."""

    logps: LogProbs
    version: int
    topk_ids: npt.NDArray[np.int32] | None = None
    topk_logps: npt.NDArray[np.float32] | None = None
    next_logps: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapReport:
    """What one commit cost those who were being served: ``hold_s`` is the pause in sampling."""

    version: int
    hold_s: float
    requests_carried: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    running: int
    waiting: int


class Engine(Protocol):
    capabilities: Capabilities

    @property
    def version(self) -> int: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def load(self) -> Load: ...

    def stats(self) -> Mapping[str, Any]:
        """Figures of this kind of engine, for the status."""
        ...

    async def start(self) -> None: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Stream a response. Closing the generator aborts the request and frees its slot."""
        ...

    async def sample(self, request: GenerateRequest, times: int) -> list[TokenIds | Exception]:
        """``times`` independent answers to one prompt, whole; what failed is in the place of its answer."""
        ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]: ...

    async def prepare(self, manifest: WeightManifest, snapshot: Path) -> None:
        """Make room for a version; refuses (`WeightsRefused`) one whose tensors do not fit this model.

        ``snapshot`` is where the version lies on disk; an engine may need it, and says so if it cannot be read.
        """
        ...

    async def receive(self, source: WeightSource) -> None:
        """Take every byte of the prepared version and check the digest, else `WeightsRefused` or `TransferError`."""
        ...

    async def commit(self, version: int) -> SwapReport:
        """Serve ``version``, complete and verified. Requests in flight go on under it, prefix recomputed."""
        ...

    async def abort(self) -> None:
        """Forget a version being received; the one before it serves. Safe to call at any time."""
        ...

    def health(self) -> None:
        """Raise `EngineError` when the engine cannot serve."""
        ...

    async def stop(self) -> None: ...
