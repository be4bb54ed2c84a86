"""What metrics cost: requests per second with them, as a ratio to requests per second without, in one run.

    python -m bench.metrics [--rounds 12] [--seconds 5]

Two graphs that differ in ``metrics.enabled`` alone run side by side for the whole time, so that the idle one weighs the
same on both. They are asked in turn, a few seconds each, and whoever is first in one round is second in the next: a
change of the machine's mood meets both. An engine that answers at once stands behind them, and measures each token as a
replica does, so that what is compared is the HTTP side at its limit. The median of the rounds' ratios counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.ingress import CONNECTIONS, DEFAULT, GATEWAY_CPU, REPOSITORY, document_of, graph, pin
from bench.ingress_load import Target, load
from bench.ingress_peers import KEY

MOST_LOST = 0.05
KINDS = {"answers": False, "streams": True}


def measure(targets: dict[str, Target], rounds: int, for_s: float) -> dict[str, list[dict[str, float]]]:
    """Requests per second by kind, round and whether there are metrics."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    names = list(targets)
    for name in names:
        asyncio.run(load(targets[name], stream=False, connections=CONNECTIONS, for_s=for_s))  # to warm up
    for number in range(rounds):
        order = names if number % 2 == 0 else names[::-1]
        for kind, stream in KINDS.items():
            row = {}
            for name in order:
                asked = load(targets[name], stream=stream, connections=CONNECTIONS, for_s=for_s)
                row[name] = asyncio.run(asked).per_second
            found[kind].append(row)
        print(f"round {number + 1} of {rounds}", flush=True)
    return found


def summary(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median ratio of on to off over the rounds, and the middle 95 % of what its resamples give."""
    ratios = [row["on"] / row["off"] for row in rows]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        "on": statistics.median(row["on"] for row in rows),
        "off": statistics.median(row["off"] for row in rows),
        "ratio": statistics.median(ratios),
        "ratio_low": medians[50],
        "ratio_high": medians[-51],
    }


def report(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Prints the table; returns its figures."""
    print("\n| | with metrics, 1/s | without, 1/s | ratio | 95 % of resamples |\n|---|---|---|---|---|")
    figures = {}
    for kind, rows in found.items():
        row = figures[kind] = summary(rows)
        print(
            f"| {kind} | {row['on']:.1f} | {row['off']:.1f} | {row['ratio']:.3f} | "
            f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f} |"
        )
    return figures


def run(rounds: int, for_s: float, folder: Path) -> dict[str, list[dict[str, float]]]:
    others = set(os.sched_getaffinity(0)) - {GATEWAY_CPU}
    if not others:
        raise SystemExit("two CPUs are needed: one for the gateway, one for the rest")
    targets = {}
    with ExitStack() as stack:
        for name, port in (("on", 18111), ("off", 18112)):
            place = folder / name
            place.mkdir()
            document = document_of(port, "bench.ingress_graph:app")
            args = document["applications"][0]["args"]
            args["metrics"] = {"enabled": name == "on"}
            # A cluster each.
            os.environ["RAY_TMPDIR"] = str(place)
            server, url = stack.enter_context(graph(document, place, DEFAULT))
            pin(server, others)
            targets[name] = Target(name=name, url=url, key=KEY, model=args["serving"]["served_name"])
        os.sched_setaffinity(0, others)
        return measure(targets, rounds, for_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "bench-output" / "metrics.json")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clawrl-bench-", dir="/tmp"))
    try:
        found = run(asked.rounds, asked.seconds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = report(found)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps({"figures": figures, "rounds": found}, indent=1))
    print(f"\nwritten to {asked.output}")
    if (worst := min(row["ratio"] for row in figures.values())) < 1 - MOST_LOST:
        raise SystemExit(f"with metrics requests per second drop by {1 - worst:.1%}, more than {MOST_LOST:.0%}")


if __name__ == "__main__":
    main()
