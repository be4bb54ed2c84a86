"""Asking an OpenAI-compatible endpoint again and again, and what that took."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to ask, as whom."""

    name: str
    url: str
    key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``seconds`` of each whole answer, sorted; ``wall_s`` from the first question to the last answer."""

    seconds: tuple[float, ...]
    wall_s: float

    @property
    def p50_ms(self) -> float:
        return 1000 * statistics.median(self.seconds)

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """One streamed answer: seconds until the first text, and between two tokens after that."""

    first_s: float
    gap_s: float
    tokens: int


async def load(target: Target, *, stream: bool, connections: int, for_s: float) -> Load:
    """As many questions as fit into ``for_s`` with so many asking at once. Raises if any is not answered."""
    seconds: list[float] = []
    async with _session(target, connections) as session:
        await _ask(session, target, stream)
        began = time.perf_counter()

        async def keep_asking() -> None:
            while time.perf_counter() - began < for_s:
                asked = time.perf_counter()
                await _ask(session, target, stream)
                seconds.append(time.perf_counter() - asked)

        await asyncio.gather(*(keep_asking() for _ in range(connections)))
        wall = time.perf_counter() - began
    return Load(seconds=tuple(sorted(seconds)), wall_s=wall)


async def streamed(target: Target, prompts: list[str], max_tokens: int) -> list[Streamed]:
    """One answer after the other, each timed as its pieces come."""
    found = []
    async with _session(target, 1) as session:
        for prompt in prompts:
            body = _body(target, prompt) | {
                "stream": True,
                "max_tokens": max_tokens,
                "stream_options": {"include_usage": True},
            }
            began = time.perf_counter()
            times: list[float] = []
            tokens = 0
            async with session.post(f"{target.url}/v1/chat/completions", json=body) as reply:
                reply.raise_for_status()
                async for line in reply.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event: dict[str, Any] = json.loads(line[6:])
                    if event["choices"] and event["choices"][0]["delta"].get("content"):
                        times.append(time.perf_counter())
                    if event.get("usage"):
                        tokens = event["usage"]["completion_tokens"]
            if len(times) > 1 and tokens > 1:
                gap = (times[-1] - times[0]) / (tokens - 1)
                found.append(Streamed(first_s=times[0] - began, gap_s=gap, tokens=tokens))
    return found


def _session(target: Target, connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        headers={"Authorization": f"Bearer {target.key}"},
        timeout=aiohttp.ClientTimeout(total=120),
    )


def _body(target: Target, prompt: str) -> dict[str, Any]:
    return {"model": target.model, "messages": [{"role": "user", "content": prompt}]}


async def _ask(session: aiohttp.ClientSession, target: Target, stream: bool) -> None:
    body = _body(target, "What is a bridge?") | {"stream": stream}
    async with session.post(f"{target.url}/v1/chat/completions", json=body) as reply:
        text = await reply.read()
        if reply.status != 200 or (stream and not text.endswith(b"data: [DONE]\n\n")):
            raise RuntimeError(f"{target.name} answered {reply.status}: {text[-500:]!r}")
