"""How an answer came, token by token: kept beside it and told once, when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from clawrl.metrics import catalogue
from clawrl.metrics.sink import Sink

MOST_GAPS = 64
"""Of one answer: what is told must not grow with how long it is."""


class AnswerMeter:
    """Made when the replica takes the request. ``took`` is called with each chunk, ``ended`` once."""

    __slots__ = ("_began", "_clock", "_gaps", "_last", "_longest", "_seen", "_sink", "_stride", "_tokens", "_ttft")

    def __init__(self, sink: Sink, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sink, self._clock = sink, clock
        self._began = self._last = clock()
        self._ttft: float | None = None
        self._gaps: list[float] = []
        self._longest = 0.0
        self._seen, self._stride, self._tokens = 0, 1, 0

    def took(self, tokens: int) -> None:
        """A chunk of so many tokens. An empty one, as ends an answer, is no token."""
        if tokens == 0:
            return
        now = self._clock()
        self._tokens += tokens
        if self._ttft is None:
            self._ttft = now - self._began
        else:
            # Tokens that come together have shared the time.
            gap = (now - self._last) / tokens
            self._longest = max(self._longest, gap)
            if self._seen % self._stride == 0:
                self._gaps.append(gap)
                if len(self._gaps) == MOST_GAPS:
                    # Every other one goes, and of those to come as well: the rest is spread over the whole answer.
                    del self._gaps[1::2]
                    self._stride *= 2
            self._seen += 1
        self._last = now

    def ended(self, prompt_tokens: int) -> None:
        """Also of an answer that was cut off. One without a token says nothing."""
        if self._ttft is None:
            return
        self._sink.observe(catalogue.TTFT_SECONDS, (self._ttft,))
        self._sink.add(catalogue.GENERATION_TOKENS, self._tokens)
        self._sink.add(catalogue.PROMPT_TOKENS, prompt_tokens)
        if self._gaps:
            # What people notice is the longest wait, which a part of the gaps would mostly miss.
            gaps = self._gaps if self._longest in self._gaps else [*self._gaps, self._longest]
            self._sink.observe(catalogue.GAP_SECONDS, gaps)
