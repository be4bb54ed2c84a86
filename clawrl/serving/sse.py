"""Server-sent events as bytes, and a stream of them that never lets a failure look like an end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from clawrl.serving.errors import ApiError, internal


def sse(event: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event. JSON escapes line breaks, so that the text cannot end the event."""
    data = b"data: " + json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data


async def ending_in_error(
    events: AsyncGenerator[bytes, None], error_event: Callable[[ApiError], bytes]
) -> AsyncGenerator[bytes, None]:
    """``events``; a failure becomes one last event and is then raised, so that the HTTP server breaks the connection
    without a terminating chunk. Closing it closes ``events``."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except Exception as error:
        # What went wrong inside is for the log, which sees the exception; the client gets no internals.
        yield error_event(error if isinstance(error, ApiError) else internal())
        raise
