"""Several deployments at once: which Ray cluster would each `serve run` use? A line of advice, or none.

One Ray cluster holds one deployment file: a second `serve run` in the same cluster replaces the applications of the
first and ignores the second's address. Pure: ``RAY_ADDRESS`` comes in, advice goes out. The commands are those of
docs/operations-two-graphs.md.
"""

from __future__ import annotations

FIRST_CLUSTER = "ray start --head --block --port 6379 --temp-dir /tmp/ray-6379"
SECOND_CLUSTER = (
    "ray start --head --block --port 6380 --temp-dir /tmp/ray-6380 "
    "--dashboard-port 8266 --dashboard-agent-listen-port 52366 --ray-client-server-port 20001 "
    "--min-worker-port 20002 --max-worker-port 29999"
)
_RECIPE = "see docs/operations-two-graphs.md"


def advice(ray_address: str | None) -> str | None:
    """What to do about Ray before more than one deployment is started with this ``RAY_ADDRESS``."""
    if ray_address == "local":
        return None
    if not ray_address or ray_address == "auto":
        shown = "is not set" if not ray_address else "is 'auto'"
        return (
            f"RAY_ADDRESS {shown}: if there is a cluster that `ray start` started, each `serve run` joins it and the "
            f"second replaces the first; set RAY_ADDRESS=local for both, {_RECIPE}"
        )
    port, command = ("6379", FIRST_CLUSTER) if ray_address.endswith(":6380") else ("6380", SECOND_CLUSTER)
    return (
        f"RAY_ADDRESS is {ray_address!r}: a second `serve run` there would replace the first; start a cluster for it "
        f"with `{command}`, then RAY_ADDRESS=127.0.0.1:{port} serve run FILE, {_RECIPE}"
    )
