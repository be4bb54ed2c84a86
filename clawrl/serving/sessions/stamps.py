"""What clients write around a user's text: when it was sent, events of their own before it, what runs it after it.

Patterns are matched at the beginning of a text only and the rest is done without any, so that no text takes long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_STAMP = re.compile(r"\s*\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]*\]\s*")
_EVENTS = re.compile(r"\s*(?:System(?: \(untrusted\))?: [^\n]*\n\s*)+")


def unstamped(text: str) -> str:
    """The text without the time before it and the line about the runtime after it."""
    stamp = _STAMP.match(text)
    said = text if stamp is None else text[stamp.end() :]
    before, _, last = said.rstrip().rpartition("\n")
    of_the_runtime = last.lstrip().startswith("Runtime: ") and "| sessionId=" in last
    return before.rstrip() if of_the_runtime else said


def opening(text: str) -> str:
    """Where the text itself begins, which is where a client's own prompts can be told by their first words."""
    events = _EVENTS.match(text)
    return unstamped(text if events is None else text[events.end() :]).lstrip()


def without_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """The text without its blocks; ``blocks`` tells the end mark of each begin mark.

    Clients put a block before the text, after it, or on lines of its own. One within a sentence is somebody's quotation
    and stays, and so does one that is not closed.
    """
    spans = list(_spans(text, blocks))
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    gaps = [text[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    left = _clear([gap.rpartition("\n")[2] for gap in gaps[:-1]], gaps[:-1])
    right = _clear([gap.partition("\n")[0] for gap in gaps[:0:-1]], gaps[:0:-1])[::-1]
    first = next((i for i, gap in enumerate(gaps) if gap.strip()), len(gaps))
    last = next((i for i, gap in reversed(list(enumerate(gaps))) if gap.strip()), -1)
    kept, at = [], 0
    for i, (start, stop) in enumerate(spans):
        if i < first or i >= last or (left[i] and right[i]):
            kept.append(text[at:start].strip())
            at = stop
    if not at:
        return text
    return "\n".join(part for part in [*kept, text[at:].strip()] if part)


def _spans(text: str, blocks: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Where the closed blocks are, in order; what stands in a block is part of it."""
    marks = re.compile("|".join(re.escape(begin) for begin in blocks))
    unclosed: set[str] = set()
    at = 0
    while (begin := marks.search(text, at)) is not None:
        at = begin.end()
        end = blocks[begin[0]]
        # Each mark is looked for in vain at most once, so that no text takes long.
        stop = -1 if end in unclosed else text.find(end, at)
        if stop < 0:
            unclosed.add(end)
        else:
            at = stop + len(end)
            yield begin.start(), at


def _clear(lines: Sequence[str], gaps: Sequence[str]) -> list[bool]:
    """Whether nothing stands on the line between each block and the nearest line break, or edge of the text."""
    clear: list[bool] = []
    for line, gap in zip(lines, gaps, strict=True):
        clear.append(not line.strip() and ("\n" in gap or not clear or clear[-1]))
    return clear
