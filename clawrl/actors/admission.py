"""Whether a served turn may, and should, train: the first reason against it, decided when it is recorded.

The operator's own filters run on a thread and have a time limit: they must not hold up the ledger, nor the last chunk
of anybody's answer.
"""

from __future__ import annotations

import asyncio
import logging

from clawrl.config import Deployment
from clawrl.guards.filters import Against, filter_reason
from clawrl.ledger.store import Ledger
from clawrl.messages import DropReason, Turn
from clawrl.plugins import load
from clawrl.serving.trainability import drop_reason

log = logging.getLogger(__name__)
_FILTER_TIMEOUT_S = 5.0


class Admission:
    def __init__(self, deployment: Deployment) -> None:
        self._filters = deployment.guards.filters
        self._extra = [load(path) for path in self._filters.extra]
        self._max_tokens = deployment.trainer.training.max_sample_tokens

    async def reason_against(self, turn: Turn) -> Against | None:
        """From the turn alone: permission and facts first, then the filters. One that takes too long refuses."""
        if (reason := drop_reason(turn, self._max_tokens)) is not None:
            return Against(reason)
        if not self._extra:
            against = filter_reason(turn, self._filters)
        else:
            try:
                async with asyncio.timeout(_FILTER_TIMEOUT_S):
                    against = await asyncio.to_thread(filter_reason, turn, self._filters, self._extra)
            except TimeoutError:
                return Against(DropReason.REFUSED_BY_FILTER, f"no answer of the filters within {_FILTER_TIMEOUT_S} s")
        if against is not None:
            log.info("turn %s does not train: %s", turn.turn_id, against.detail)
        return against

    def seen(self, ledger: Ledger, turn: Turn) -> Against | None:
        """What only the ledger knows."""
        duplicate = self._filters.duplicates == "drop" and ledger.is_duplicate(turn)
        return Against(DropReason.DUPLICATE) if duplicate else None
