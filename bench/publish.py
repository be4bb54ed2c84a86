"""What a publish costs: gloo and disk, several bucket sizes, both engines, against one call for each tensor.

    python -m bench.publish [--model FOLDER] [--rounds 3] [--buckets 1 8 64 256] [--json FILE] [--quick]

A trainer in a process of its own has two contents of the model's weights and publishes them by turns to an engine with
four answers in flight: one of our ways, then the naive one (`bench.publish_ways`), then the next of ours, then the
naive one again, and so on, round by round. Ratios are to the naive publish beside it. In every other round the naive
one goes first.

*Hold* is how long the engine did not sample; *silence* is the longest that any stream waited for its next token from
the beginning of the publish to the first token after it. What the trainer does before it offers a version, the digest
and the snapshot, is the same for all of our ways and is printed apart; the naive way does neither. Snapshots have just
been written, so disk here means the page cache.

SGLang runs on the CPU in the interpreter that CLAWRL_SGLANG_PYTHON names, and is left out without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from bench.publish_trainer import Offer, Trainer
from bench.publish_ways import Cost, Rig, SglangRig, Traffic, TransformersRig, ours
from clawrl.config import read_deployment
from clawrl.models import resolve
from clawrl.weights.manifest import byte_size

REPOSITORY = Path(__file__).resolve().parent.parent
LAPTOP = REPOSITORY / "deployments" / "laptop.yaml"
ENGINES = ("transformers", "sglang")
NAIVE = "a call each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way of ours. ``bucket_mb`` None: there are no buckets."""

    transport: str
    bucket_mb: float | None

    def __str__(self) -> str:
        return self.transport if self.bucket_mb is None else f"{self.transport} in buckets of {self.bucket_mb:g} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    round: int
    cell: Cell
    ours: Cost
    naive: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """``check_s`` is what reading and hashing every weight in place takes, a part of each ``receive`` of ours."""

    pairs: list[Pair]
    check_s: float


def cells_of(engine: str, buckets: Sequence[float]) -> list[Cell]:
    gloo = [Cell(transport="gloo", bucket_mb=size) for size in buckets]
    # SGLang reads the folder itself.
    on_disk = [None] if engine == "sglang" else buckets
    return [*gloo, *(Cell(transport="disk", bucket_mb=size) for size in on_disk)]


class Bench:
    """One engine with its traffic. Each publish is the next version, with the other content."""

    def __init__(self, rig: Rig, trainer: Trainer, offers: Sequence[Offer], traffic: Traffic) -> None:
        self._rig = rig
        self._trainer = trainer
        self._offers = offers
        self._traffic = traffic
        self._version = 0
        self._checks: list[float] = []

    async def measure(self, cells: Sequence[Cell], rounds: int) -> Measured:
        for _ in self._offers:
            # Not counted: what an engine does once, it does here. And for SGLang `check` learns what is right.
            await self._ours(cells[0])
            await self._check()
        self._checks.clear()
        pairs = []
        for number in range(rounds):
            for cell in cells:
                if number % 2:
                    naive = await self._naive()
                    mine = await self._ours(cell)
                else:
                    mine = await self._ours(cell)
                    naive = await self._naive()
                pairs.append(Pair(round=number, cell=cell, ours=mine, naive=naive))
                what = f"round {number + 1} of {rounds}, {cell}"
                print(f"{self._rig.name}: {what}: {mine.whole_s:.2f} s, naive {naive.whole_s:.2f} s", flush=True)
        return Measured(pairs=pairs, check_s=statistics.median(self._checks))

    async def _ours(self, cell: Cell) -> Cost:
        def way(offer: Offer) -> Awaitable[Cost]:
            size = cell.bucket_mb or 64.0
            return ours(self._rig, self._trainer, offer, self._version, cell.transport, size)

        cost = await self._one(way)
        return cost if cell.bucket_mb else replace(cost, pieces=1)

    async def _naive(self) -> Cost:
        cost = await self._one(lambda offer: self._rig.naive(self._trainer, offer, self._version))
        await self._check()
        return cost

    async def _one(self, way: Callable[[Offer], Awaitable[Cost]]) -> Cost:
        await self._traffic.settled()
        self._version += 1
        self._traffic.watch()
        cost = await way(self._offer())
        carried = self._traffic.tokens
        await self._traffic.settled()
        return replace(cost, silence_s=self._traffic.silence_s, tokens_carried=carried)

    async def _check(self) -> None:
        began = time.perf_counter()
        await self._rig.check(self._offer())
        self._checks.append(time.perf_counter() - began)

    def _offer(self) -> Offer:
        return self._offers[self._version % len(self._offers)]


async def measure_engine(rig: Rig, trainer: Trainer, offers: Sequence[Offer], model: Path, **how: Any) -> Measured:
    vocabulary = int(AutoConfig.from_pretrained(model).get_text_config().vocab_size)
    traffic = Traffic(rig.engine, vocabulary)
    try:
        await rig.engine.start()
        traffic.start()
        return await Bench(rig, trainer, offers, traffic).measure(**how)
    finally:
        await traffic.stop()
        await rig.engine.stop()


async def measure_all(asked: argparse.Namespace, model: Path, work: Path) -> dict[str, Any]:
    # Ending by a signal is ending: engines and the trainer go first.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    python = os.environ.get("CLAWRL_SGLANG_PYTHON", "")
    found: dict[str, Measured] = {}
    trainer = Trainer(model, work)
    try:
        offers = await asyncio.to_thread(trainer.offers)
        for name in asked.engines:
            if name == "sglang" and not (python and Path(python).is_file()):
                print("sglang: SKIPPED, since CLAWRL_SGLANG_PYTHON names no interpreter that has it", flush=True)
                continue
            rig: Rig = SglangRig(model, python) if name == "sglang" else TransformersRig(model)
            cells = cells_of(name, asked.buckets)
            found[name] = await measure_engine(rig, trainer, offers, model, cells=cells, rounds=asked.rounds)
    finally:
        trainer.stop()
    return {
        "model": model.name,
        "bytes": sum(byte_size(spec) for spec in offers[0].manifest.tensors),
        "tensors": len(offers[0].manifest.tensors),
        "torch": torch.__version__,
        "cpus": len(os.sched_getaffinity(0)),
        "manifest_s": statistics.median(offer.manifest_s for offer in offers),
        "snapshot_s": statistics.median(offer.snapshot_s for offer in offers),
        "engines": {name: asdict(measured) for name, measured in found.items()},
        "table": [row for name, measured in found.items() for row in rows(name, measured)],
    }


def rows(engine: str, measured: Measured) -> list[dict[str, Any]]:
    """One for each way of ours, in the order of the first round, then the naive one's over all of its publishes."""
    pairs = measured.pairs
    found = []
    for cell in dict.fromkeys(pair.cell for pair in pairs):
        of_cell = [pair for pair in pairs if pair.cell == cell]
        found.append(
            {
                **{"engine": engine, "way": cell.transport, "bucket_mb": cell.bucket_mb},
                **_summary([pair.ours for pair in of_cell]),
                "whole_ratio": statistics.median(pair.ours.whole_s / pair.naive.whole_s for pair in of_cell),
                "hold_ratio": statistics.median(pair.ours.hold_s / pair.naive.hold_s for pair in of_cell),
            }
        )
    naive = _summary([pair.naive for pair in pairs])
    return [*found, {"engine": engine, "way": NAIVE, "bucket_mb": None, **naive, "whole_ratio": 1, "hold_ratio": 1}]


def _summary(costs: Sequence[Cost]) -> dict[str, Any]:
    def middle(of: Callable[[Cost], float]) -> float:
        return statistics.median(map(of, costs))

    return {
        "pieces": costs[0].pieces,
        "bytes": costs[0].bytes,
        "prepare_s": middle(lambda cost: cost.prepare_s),
        "receive_s": middle(lambda cost: cost.receive_s),
        "commit_s": middle(lambda cost: cost.commit_s),
        "whole_s": middle(lambda cost: cost.whole_s),
        "hold_p50_s": middle(lambda cost: cost.hold_s),
        "hold_max_s": max(cost.hold_s for cost in costs),
        "silence_p50_s": middle(lambda cost: cost.silence_s),
        "tokens_carried": middle(lambda cost: cost.tokens_carried),
    }


def report(figures: dict[str, Any]) -> None:
    print(
        f"\n{figures['model']}: {figures['tensors']} tensors, {figures['bytes'] / 1e6:.1f} MB in float32; "
        f"{figures['cpus']} CPUs. Before each version the trainer takes {figures['manifest_s']:.2f} s for its digest "
        f"and {figures['snapshot_s']:.2f} s for its snapshot."
    )
    for name, measured in figures["engines"].items():
        print(f"{name}: hashing every weight takes {measured['check_s']:.2f} s, a part of each receive of ours.")
    print(
        "\n| engine | way | bucket, MB | pieces | MB | prepare, s | receive, s | commit, s | whole, s | ratio "
        "| hold p50, ms | max | ratio | silence, ms | tokens carried |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for row in figures["table"]:
        bucket = "" if row["bucket_mb"] is None else f"{row['bucket_mb']:g}"
        print(
            f"| {row['engine']} | {row['way']} | {bucket} | {row['pieces']} | {row['bytes'] / 1e6:.1f} | "
            f"{row['prepare_s']:.3f} | {row['receive_s']:.2f} | {row['commit_s']:.3f} | {row['whole_s']:.2f} | "
            f"{row['whole_ratio']:.2f} | {1000 * row['hold_p50_s']:.1f} | {1000 * row['hold_max_s']:.1f} | "
            f"{row['hold_ratio']:.3f} | {1000 * row['silence_p50_s']:.0f} | {row['tokens_carried']:.0f} |"
        )


def _model(asked: argparse.Namespace, work: Path) -> Path:
    if asked.model is not None:
        return Path(asked.model)
    if asked.quick:
        from tests.tiny_model import build_tiny_model

        return build_tiny_model(work / "tiny")
    return resolve(read_deployment(LAPTOP).policy.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; else the laptop's model")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--buckets", nargs="+", type=float, metavar="MB")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="a tiny random model: does the bench itself work?")
    parser.add_argument("--json", type=Path, help="write every figure of every publish there")
    asked = parser.parse_args()
    # The tiny model is smaller than one of the usual buckets.
    asked.buckets = asked.buckets or ([0.01, 0.1] if asked.quick else [1.0, 8.0, 64.0, 256.0])
    asked.rounds = asked.rounds or (2 if asked.quick else 3)
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="clawrl-bench-"))
    try:
        figures = asyncio.run(measure_all(asked, _model(asked, work), work))
    except asyncio.CancelledError:
        raise SystemExit("ended by a signal, with the engines and the trainer") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report(figures)
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
