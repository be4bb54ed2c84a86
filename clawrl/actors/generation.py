"""What the ingress asks of a rollout replica, and how a replica says no."""

from __future__ import annotations

from dataclasses import dataclass

from clawrl.messages import Arrival, SamplingParams, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTask:
    """One response to generate and to record. ``overridden``: the operator's sampling replaced the client's."""

    arrival: Arrival
    prompt_ids: TokenIds
    sampling: SamplingParams
    logprobs: bool
    overridden: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Comes instead of the first piece. ``overloaded`` may be retried later; otherwise ``param`` is at fault."""

    message: str
    param: str | None = None
    overloaded: bool = False
