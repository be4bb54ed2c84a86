"""Scores from SGLang, however long the text and whatever the temperature: asked for in windows, put together again.

A window is a stretch of a request's positions with the number of candidates that is asked for at each. Where those are
too few for the temperature, the window is cut in shorter ones with more candidates each, so that no reply outgrows
`MOST_ENTRIES` and one awkward token does not make all others dear. SGLang keeps what it computed for the text, so that
each further window costs its own tokens. All windows of a request must be of one version: where weights changed in
between, the request is asked for anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clawrl.engine.protocol import ScoreRequest, Scores
from clawrl.engine.sglang_scores import WrongReply, first_candidates, read_scores, score_body

MOST_ENTRIES = 400_000
"""Candidates in one reply: some ten megabytes of JSON."""
_MORE = 8
_ATTEMPTS = 5

Ask = Callable[[Mapping[str, Any]], Awaitable[Sequence[Mapping[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Window:
    """Positions ``start:end`` of request ``index``; of its last one also what comes next, if that is asked for."""

    index: int
    start: int
    end: int
    candidates: int

    @property
    def entries(self) -> int:
        return (self.end - self.start) * self.candidates

    def of(self, request: ScoreRequest) -> ScoreRequest:
        last = self.end == len(request.ids)
        token_ids = request.token_ids if last else ()
        return replace(request, ids=request.ids[: self.end], start=self.start, token_ids=token_ids)


async def score_all(requests: Sequence[ScoreRequest], ask: Ask, *, vocabulary: int, tolerance: float) -> list[Scores]:
    """``ask`` sends one body and returns its replies in order. Raises `WrongReply`."""
    results: dict[int, Scores] = {}
    for _ in range(_ATTEMPTS):
        missing = [index for index in range(len(requests)) if index not in results]
        if not missing:
            break
        found = await _windows(requests, missing, ask, vocabulary, tolerance)
        for index in missing:
            pieces = [scores for _, scores in sorted(found[index].items())]
            if len({piece.version for piece in pieces}) == 1:
                results[index] = _joined(pieces)
    if len(results) < len(requests):
        raise WrongReply("the weights changed at every attempt")
    return [results[index] for index in range(len(requests))]


async def _windows(
    requests: Sequence[ScoreRequest], indices: Sequence[int], ask: Ask, vocabulary: int, tolerance: float
) -> dict[int, dict[int, Scores]]:
    """The scores of each request by the start of their window."""
    waiting: list[Window] = []
    for index in indices:
        request = requests[index]
        whole = Window(index, request.start, len(request.ids), first_candidates(request, vocabulary))
        waiting += cut(whole, whole.candidates)
    found: dict[int, dict[int, Scores]] = {index: {} for index in indices}
    while waiting:
        batch = _batch(waiting)
        waiting = waiting[len(batch) :]
        asked = [window.of(requests[window.index]) for window in batch]
        replies = await ask(score_body(asked, [window.candidates for window in batch]))
        if len(replies) != len(batch):
            raise WrongReply(f"{len(replies)} replies to {len(batch)} requests")
        # Some megabytes of numbers: not on the loop that streams answers.
        scores = await asyncio.to_thread(
            lambda: [
                read_scores(request, window.candidates, reply, vocabulary, tolerance)
                for request, window, reply in zip(asked, batch, replies, strict=True)  # noqa: B023
            ]
        )
        for window, one in zip(batch, scores, strict=True):
            if one is not None:
                found[window.index][window.start] = one
            else:
                waiting += cut(window, min(_MORE * window.candidates, vocabulary))
    return found


def cut(window: Window, candidates: int) -> list[Window]:
    """The same positions with ``candidates`` each, in windows that keep to `MOST_ENTRIES`."""
    length = max(1, MOST_ENTRIES // candidates) if candidates else max(1, window.end - window.start)
    starts = range(window.start, max(window.end, window.start + 1), length)
    return [Window(window.index, start, min(start + length, window.end), candidates) for start in starts]


def _batch(waiting: Sequence[Window]) -> list[Window]:
    """As many from the front as one reply may hold."""
    chosen: list[Window] = []
    entries = 0
    for window in waiting:
        if chosen and entries + window.entries > MOST_ENTRIES:
            break
        chosen.append(window)
        entries += window.entries
    return chosen


def _joined(pieces: Sequence[Scores]) -> Scores:
    if len(pieces) == 1:
        return pieces[0]
    ids = [piece.topk_ids for piece in pieces if piece.topk_ids is not None]
    logps = [piece.topk_logps for piece in pieces if piece.topk_logps is not None]
    return Scores(
        logps=np.concatenate([piece.logps for piece in pieces]),
        version=pieces[0].version,
        topk_ids=np.concatenate(ids) if ids else None,
        topk_logps=np.concatenate(logps) if logps else None,
        next_logps=pieces[-1].next_logps,
    )
