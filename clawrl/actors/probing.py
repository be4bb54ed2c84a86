"""Whether somebody answers, within the time that whoever asks after readiness has."""

from __future__ import annotations

import asyncio
from typing import Any

PROBE_TIMEOUT_S = 4.0


async def answers(call: Any) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await call
    except Exception:
        return False
    return True
