"""``POST /clawrl/pause``: ``{"reason": "..."}``, or no body. The reason stands in every status until it is lifted."""

from __future__ import annotations

from clawrl.serving.errors import invalid_request
from clawrl.serving.fields import JsonObject, text

MAX_REASON_CHARS = 500


def parse_pause(body: JsonObject) -> str:
    """Raises `ApiError` (400)."""
    reason = text(body, "reason") or ""
    if len(reason) > MAX_REASON_CHARS:
        raise invalid_request(
            f"reason must be {MAX_REASON_CHARS} characters or fewer; this one has {len(reason)}", "reason"
        )
    return reason
