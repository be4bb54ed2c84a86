"""Whether Serve is taking this replica away: no new requests reach it, and when those that it has are answered it ends.

Serve tells user code only at the very end (`__del__`). That it has begun is known to the actor around the user's
object, in this process; the way there is Ray's own and may change with a release, and then the answer is no.
"""

from __future__ import annotations

from ray._private import worker


def is_draining() -> bool:
    actors = getattr(worker.global_worker, "actors", None) or {}
    return any(getattr(getattr(actor, "_replica_impl", None), "_shutting_down", False) for actor in actors.values())
