"""Several answers to one prompt, for engines that answer requests one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Protocol

import numpy as np

from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.messages import TokenIds


class Generating(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]: ...


async def sample_each(engine: Generating, request: GenerateRequest, times: int) -> list[TokenIds | Exception]:
    """As `Engine.sample`. The requests run side by side, under ids made of ``request``'s."""
    named = [replace(request, request_id=f"{request.request_id}-{index}") for index in range(times)]
    results = await asyncio.gather(*(_whole(engine, one) for one in named), return_exceptions=True)
    answers: list[TokenIds | Exception] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            raise result
        answers.append(result)
    return answers


async def _whole(engine: Generating, request: GenerateRequest) -> TokenIds:
    parts = [chunk.ids async for chunk in engine.generate(request)]
    return np.concatenate(parts).astype(np.int32)
