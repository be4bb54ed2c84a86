"""What a dialect makes of a body: the request, and who writes the answer to it. It translates and knows no model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clawrl.messages import TurnId, VersionSpan
from clawrl.serving.pieces import Started, WholeAnswer
from clawrl.serving.request import ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What every part of a response shares. One turn for each answer."""

    turn_ids: tuple[TurnId, ...]
    model: str
    created: int
    session: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Request-Id": self.turn_ids[0], "X-Clawrl-Turn-Id": self.turn_ids[0]}

    def ours(self, index: int, version: int | None, spans: Sequence[VersionSpan] | None = None) -> dict[str, Any]:
        """The ``clawrl`` object in a part of the ``index``-th answer; ``version`` is None before the first token."""
        block: dict[str, Any] = {"turn_id": self.turn_ids[index]}
        if version is not None:
            block["version"] = version
        if self.session is not None:
            block["session"] = self.session
        if spans is not None:
            block["spans"] = [{"start": s.start, "end": s.end, "version": s.version} for s in spans]
        return block


class Writer(Protocol):
    """Writes the response to one request."""

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        ...

    def stream(self, pieces: Started) -> AsyncGenerator[bytes, None]:
        """Server-sent events. A failure becomes an error event and is then raised: the connection breaks, and an
        answer that was cut never looks complete. Closing the output closes the input."""
        ...


class Asked(Protocol):
    """A request as it was read, with what its dialect must remember to answer it."""

    @property
    def request(self) -> ModelRequest: ...

    def writer(self, facts: AnswerFacts) -> Writer: ...
