"""An answer cut into its regions: text, reasoning and tool calls, each stretch exactly as the model wrote it.

In: pieces of text. Out: `Span`s that joined are the text; a mark that is not decided yet waits. The finding is that of
transformers' `ResponseParser`, which knows no JSON: whoever reads a call says where it is wrong. `reject` reads on
from there as text, up to the mark that closes the call or that opens the next one. `go_on` takes the mark that just
closed a call for a part of it. Both may be called between two spans.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

_REFUSED_END = "refused_end"


class Region(enum.StrEnum):
    """The names of the fields of a response template."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Edge(enum.Enum):
    OPEN = enum.auto()
    INSIDE = enum.auto()
    CLOSE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """``written`` is the mark where a region opens or closes."""

    region: Region
    edge: Edge
    written: str


class Regions:
    """``fields`` are those of a response template, under the names of `Region`."""

    def __init__(self, fields: Mapping[str, Mapping[str, Any]]) -> None:
        self._fields = fields
        self._ahead = ""  # fed, but in no span yet
        self._refusing = False
        self._restart()

    def feed(self, text: str) -> Iterator[Span]:
        self._ahead += text
        events = deque[Mapping[str, Any]](self._parser.feed(text))
        while events:
            event = events.popleft()
            span = self._span(event)
            if span is None:
                continue
            self._ahead = self._ahead[len(span.written) :]
            self._restarted = False
            if self._refusing and span.edge is Edge.OPEN:
                self._refusing = False
                self._restart(opened=span.written)
            elif event["field"] == _REFUSED_END:
                self._refusing = False
                self._restart()
            yield span
            if self._restarted:
                events = deque(self._parser.feed(self._ahead))

    def finish(self) -> Iterator[Span]:
        """What waited. Only an unfinished mark waits, so that no region opens or closes here."""
        for event in self._parser.finalize()[1]:
            if event["type"] == "region_chunk":
                yield Span(region=Region(event["field"]), edge=Edge.INSIDE, written=event["text"])

    def go_on(self) -> None:
        self._restart(opened=self._fields[Region.CALL]["open"])

    def reject(self, unread: str) -> None:
        """``unread`` is the end of the span that came last, from where the call is wrong."""
        self._ahead = unread + self._ahead
        self._refusing = True
        self._restart()

    def _restart(self, opened: str = "") -> None:
        fields: dict[str, Mapping[str, Any]] = dict(self._fields)
        if self._refusing:
            call = fields.pop(Region.CALL)
            fields.pop(Region.REASONING, None)
            # Without a mark at its end a call is the whole answer, so that none follows.
            if "close" in call:
                fields |= {Region.CALL: call, _REFUSED_END: {"open": call["close"]}}
        # The anchor finds the answer in a prompt; none is given.
        template = {"start_anchor_pattern": "(?!)", "fields": fields}
        self._parser = ResponseParser(template, prefix="")
        self._parser.feed(opened)
        self._restarted = True

    def _span(self, event: Mapping[str, Any]) -> Span | None:
        if event["field"] == _REFUSED_END:
            call = self._fields[Region.CALL]
            return Span(region=Region.TEXT, edge=Edge.INSIDE, written=call["close"])
        region = Region(event["field"])
        if event["type"] == "region_chunk":
            return Span(region=region, edge=Edge.INSIDE, written=event["text"])
        if region is Region.TEXT:
            return None
        if event["type"] == "region_open":
            return Span(region=region, edge=Edge.OPEN, written=self._opening(self._fields[region]))
        return Span(region=region, edge=Edge.CLOSE, written=self._fields[region]["close"])

    def _opening(self, field: Mapping[str, Any]) -> str:
        if "open" in field:
            return str(field["open"])
        found = re.match(field["open_pattern"], self._ahead)
        return found.group() if found else ""
