"""What an engine refuses before it runs anything, with the parameter to change. One rule for all engines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from clawrl.engine.errors import EngineError, UnsupportedRequest
from clawrl.engine.protocol import GenerateRequest, ScoreRequest

COLDEST = 0.01
"""Logits divided by less overflow."""


def check_request(request: GenerateRequest, *, context_length: int, vocabulary: int) -> None:
    """Raises `UnsupportedRequest` for what would harm the other requests of an engine, or cannot be honoured."""
    sampling, prompt = request.sampling, request.prompt_ids
    if len(prompt) == 0:
        raise UnsupportedRequest("the prompt is empty", param="messages")
    if sampling.max_tokens < 1 or len(prompt) + sampling.max_tokens > context_length:
        raise UnsupportedRequest(
            f"{len(prompt)} prompt tokens and {sampling.max_tokens} new ones do not fit {context_length}",
            param="max_tokens",
        )
    if int(prompt.min()) < 0 or int(prompt.max()) >= vocabulary:
        raise UnsupportedRequest(f"the prompt holds ids outside 0..{vocabulary - 1}", param="messages")
    if not (sampling.greedy or COLDEST <= sampling.temperature < math.inf):
        raise UnsupportedRequest(
            f"temperature {sampling.temperature} is out of range: use 0, or {COLDEST} and more", param="temperature"
        )
    if not 0.0 < sampling.top_p <= 1.0:
        raise UnsupportedRequest(f"top_p {sampling.top_p} is out of range", param="top_p")


def check_scored(requests: Sequence[ScoreRequest], context_length: int) -> None:
    for request in requests:
        if not 1 <= request.start <= len(request.ids) <= context_length:
            raise UnsupportedRequest(
                f"cannot score {len(request.ids)} ids from {request.start}: 1 <= start <= length <= "
                f"{context_length} is needed"
            )


def check_positions(model_config: Any, context_length: int) -> None:
    """Raises `EngineError` where requests may be longer than what the model, by its text settings, knows."""
    limit = getattr(model_config, "max_position_embeddings", None)
    if limit is not None and limit < context_length:
        raise EngineError(f"engine.context_length is {context_length}, but the model knows only {limit} positions")


def end_ids(*named: Any) -> list[int]:
    """Every id that ends an answer: chat models name some in the model, some in the tokenizer."""
    found: set[int] = set()
    for value in named:
        found.update(value if isinstance(value, list) else [value] if value is not None else [])
    return sorted(found)
