"""How healthy an answer looks to the frozen model.

A policy that is being spoilt drifts from it, stops making sense to it, or answers anything to any question. Each of
these is one number here. A number that is not finite is a finding and is passed on.
"""

from __future__ import annotations

import numpy as np

from clawrl.engine.protocol import Engine, ScoreRequest
from clawrl.judging.divergence import k3
from clawrl.messages import ModelVitals, VitalsRequest


class VitalsError(RuntimeError):
    """An answer that cannot be measured."""


class VitalsMeter:
    """``engine`` runs the frozen model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def measure(self, request: VitalsRequest) -> ModelVitals:
        """Two texts in one call. An unrelated prompt that does not fit loses its beginning. Raises `VitalsError`."""
        length = len(request.response_ids)
        room = self._engine.capabilities.context_length - length
        if not length or not len(request.prompt_ids) or not len(request.other_prompt_ids):
            raise VitalsError(f"turn {request.turn_id}: a prompt or the response has no tokens")
        if len(request.prompt_ids) > room:
            raise VitalsError(
                f"turn {request.turn_id}: {len(request.prompt_ids) + length} tokens do not fit the frozen model's "
                f"context of {room + length}; raise judge.engine.context_length"
            )
        asked = [
            ScoreRequest(
                ids=np.concatenate([prompt, request.response_ids]).astype(np.int32),
                start=len(prompt),
                temperature=request.temperature,
            )
            for prompt in (request.prompt_ids, request.other_prompt_ids[-room:])
        ]
        own, other = (scores.logps.astype(np.float64) for scores in await self._engine.score(asked))
        return ModelVitals(
            fluency=float(own.mean()),
            on_topic_lift=float(own.mean() - other.mean()),
            kl=k3(own, request.behaviour_logps),
        )
