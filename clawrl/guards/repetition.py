"""How repetitive a text is, in one number."""

from __future__ import annotations

import zlib

_TOO_SHORT_TO_SAY = 64
_TAIL_BYTES = 1024


def zlib_ratio(text: str) -> float:
    """Compressed size / size of the last 1,024 bytes of UTF-8; 1.0 for texts of less than 64 bytes.

    Prose, code and tables lie above 0.35 and loops far below. The ratio of ordinary text falls with its length, and a
    model that has started to loop loops to the end: hence the tail, which makes long and short answers comparable.
    """
    data = text.encode("utf-8", errors="replace")
    if len(data) < _TOO_SHORT_TO_SAY:
        return 1.0
    tail = data[-_TAIL_BYTES:]
    return len(zlib.compress(tail, 9)) / len(tail)
