"""What a training step costs: clawrl's trainer, TRL's, and a plain loop, taking the same step on the same samples.

    python -m bench.train [--trl PYTHON] [--models tiny 135m] [--kinds padded ragged sessions] [--minutes 14]
                          [--json FILE] [--quick]

Each contestant is a process of its own; they take turns, one step each a round, in an order that moves on. Ratios are
to the plain loop's step of the same round: 2 is twice as fast. The minutes are shared out over the comparisons, and
each takes the rounds that there is time for, one at least: on a busy machine there are fewer, and the run still ends.
The first step of each is not counted: in float32 its gradients and weights are compared, and a difference ends the
bench. Tokens are those of the samples, once for each sample that has them; what went through the model, padding
included and shared beginnings once, stands beside. Memory is resident memory of the process: its peak in the steps
that count, and what of that came after the model was loaded.

TRL runs in the interpreter that --trl names, and is left out without it. The table for a model that does not fit this
machine is arithmetic: `bench.train_table`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from bench.train_same import FirstStep, compare
from bench.train_side import Job
from bench.train_table import table
from bench.train_work import KINDS, make_pieces, write_pieces
from clawrl.config import read_deployment
from clawrl.models import resolve

REPOSITORY = Path(__file__).resolve().parent.parent
LAPTOP = REPOSITORY / "deployments" / "laptop.yaml"
MODELS = ("tiny", "135m")
DTYPES = ("float32", "bfloat16")
PLAIN = "plain"
Round = Mapping[str, Mapping[str, float]]
_MOST_ROUNDS = 9
_ROW_TOKENS = 1152
"""Four rows of the padded batch's length: half of a batch goes through the model at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    model: str
    kind: str
    dtype: str
    copies: int

    def __str__(self) -> str:
        return f"{self.model}, {self.kind}, {self.dtype}"


class Contestant:
    """A process that takes a step when told to; it ends with its handle, however that one ends."""

    def __init__(self, name: str, python: str, job: Job, log: Path) -> None:
        self.name = name
        self._log = log
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, "-m", f"bench.train_{name}", job.line()],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def hear(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended:\n{self._log.read_text(errors='replace')[-3000:]}")
        told: dict[str, float] = json.loads(line)
        return told

    def step(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self.hear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """``rounds`` steps of each contestant, or as many as there is time for until ``until``; at least one."""

    rounds: int | None
    until: float

    def numbers(self) -> Iterator[int]:
        for number in count() if self.rounds is None else range(self.rounds):
            yield number
            if self.rounds is None and (time.monotonic() > self.until or number + 1 == _MOST_ROUNDS):
                return


def measure(
    cell: Cell, pythons: Mapping[str, str], folder: Path, work: Path, threads: int, patience: Patience
) -> dict[str, Any]:
    """``pythons``: an interpreter for each contestant."""
    vocabulary = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().vocab_size
    pieces = make_pieces(cell.kind, vocabulary, copies=cell.copies)
    write_pieces(pieces, work / "pieces.json")
    sides: list[Contestant] = []
    compared = cell.dtype == "float32"
    try:
        for name, python in pythons.items():
            first = work / f"first-{name}"
            first.mkdir()
            job = Job(
                model=str(folder),
                pieces=str(work / "pieces.json"),
                dtype=cell.dtype,
                tokens=_ROW_TOKENS * cell.copies,
                threads=threads,
                first=str(first) if compared else None,
            )
            sides.append(Contestant(name, python, job, work / f"{name}.log"))
        loaded = {side.name: side.hear()["loaded_mb"] for side in sides}
        firsts = {side.name: side.step() for side in sides}
        same = compare(folder, {n: FirstStep(work / f"first-{n}", s) for n, s in firsts.items()}) if compared else []
        rounds = []
        for number in patience.numbers():
            turn = number % len(sides)
            taken = {side.name: side.step() for side in [*sides[turn:], *sides[:turn]]}
            rounds.append(taken)
            print(f"{cell}:", ", ".join(f"{n} {step['seconds']:.2f} s" for n, step in taken.items()), flush=True)
    finally:
        for side in sides:
            side.stop()
        for name in pythons:
            shutil.rmtree(work / f"first-{name}", ignore_errors=True)
    tokens = sum(piece.length for piece in pieces)
    return {
        "model": cell.model,
        "kind": cell.kind,
        "dtype": cell.dtype,
        "samples": len(pieces),
        "tokens": tokens,
        "same": same,
        "rounds": rounds,
        "rows": [row(name, tokens, rounds, loaded[name]) for name in pythons],
    }


def row(name: str, tokens: int, rounds: Sequence[Round], loaded_mb: float) -> dict[str, Any]:
    steps = [taken[name] for taken in rounds]
    return {
        "name": name,
        "seconds": statistics.median(step["seconds"] for step in steps),
        "cpu_seconds": statistics.median(step["cpu_seconds"] for step in steps),
        "tokens_per_second": statistics.median(tokens / step["seconds"] for step in steps),
        "ratio": statistics.median(taken[PLAIN]["seconds"] / taken[name]["seconds"] for taken in rounds),
        "cpu_ratio": statistics.median(taken[PLAIN]["cpu_seconds"] / taken[name]["cpu_seconds"] for taken in rounds),
        "passed_tokens": steps[0]["passed_tokens"],
        "loaded_mb": loaded_mb,
        "peak_mb": max(step["peak_mb"] for step in steps),
    }


def report(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Two tables of Markdown."""
    titles = ["model", "batch", "dtype", "trainer", "tokens", "computed", "s a step", "tokens/s", "ratio"]
    titles += ["CPU s", "CPU ratio", "peak, MB", "rise"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [
        f"| {cell['model']} | {cell['kind']} | {cell['dtype']} | {one['name']} | {cell['tokens']} | "
        f"{one['passed_tokens']} | {one['seconds']:.2f} | {one['tokens_per_second']:.0f} | {one['ratio']:.2f} | "
        f"{one['cpu_seconds']:.2f} | {one['cpu_ratio']:.2f} | {one['peak_mb']:.0f} | "
        f"{one['peak_mb'] - one['loaded_mb']:.0f} |"
        for cell in cells
        for one in cell["rows"]
    ]
    lines += [
        "",
        "| model | batch | trainer | gradient norm | gradients apart | updates apart |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {cell['model']} | {cell['kind']} | {one['name']} | {one['grad_norm']:.6g} | "
        f"{one['gradients_apart']:.1e} | {one['updates_apart']:.1e} |"
        for cell in cells
        for one in cell["same"]
    ]
    return lines


def _folder(model: str, work: Path) -> Path:
    if model == "tiny":
        from tests.tiny_model import build_tiny_model

        return build_tiny_model(work / "tiny")
    return resolve(read_deployment(LAPTOP).policy.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, help="an interpreter that has trl")
    parser.add_argument("--models", nargs="+", choices=MODELS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--minutes", type=float, default=14.0, help="how long the comparisons may take together")
    parser.add_argument("--rounds", type=int, help="so many in each comparison, however long they take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="the tiny model only, 3 rounds: does the bench work?")
    parser.add_argument("--json", type=Path, help="write every figure of every step there, anew after each comparison")
    asked = parser.parse_args()
    models = asked.models or (["tiny"] if asked.quick else list(MODELS))
    rounds = asked.rounds or (3 if asked.quick else None)
    if (asked.rounds is not None and asked.rounds < 1) or asked.minutes <= 0 or asked.threads < 1:
        parser.error("--rounds, --minutes and --threads must be positive")
    pythons = {"clawrl": sys.executable, PLAIN: sys.executable}
    if asked.trl is not None and asked.trl.is_file():
        pythons["trl"] = str(asked.trl)
    else:
        print("trl: SKIPPED, since --trl names no interpreter that has it", flush=True)
    # Ending by a signal is ending: the contestants and the folder go first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal, with all contestants"))
    wanted = [
        # The tiny model's step takes milliseconds: more samples.
        Cell(model=model, kind=kind, dtype=dtype, copies=4 if model == "tiny" and not asked.quick else 1)
        for model in models
        for kind in asked.kinds
        for dtype in asked.dtypes
    ]
    print(machine(asked.threads), flush=True)
    ends = time.monotonic() + 60 * asked.minutes
    work = Path(tempfile.mkdtemp(prefix="clawrl-bench-"))
    cells: list[dict[str, Any]] = []
    try:
        folders = {model: _folder(model, work) for model in models}
        for number, cell in enumerate(wanted):
            # What one does not need is there for those that come after it.
            share = (ends - time.monotonic()) / (len(wanted) - number)
            patience = Patience(rounds=rounds, until=time.monotonic() + share)
            cells.append(measure(cell, pythons, folders[cell.model], work, asked.threads, patience))
            if asked.json is not None:
                asked.json.write_text(json.dumps({"threads": asked.threads, "cells": cells}, indent=1))
    finally:
        shutil.rmtree(work, ignore_errors=True)
        # Also what was measured until the run was ended.
        print("\n" + "\n".join(report(cells)), flush=True)
    print(f"\n{table()}\n\n{machine(asked.threads)}")


def machine(threads: int) -> str:
    """What the figures are worth: a load beyond the bench's own threads means that others use the machine."""
    minute, five, _ = os.getloadavg()
    return f"{os.cpu_count()} processors, {threads} threads for each trainer, load {minute:.1f} now, {five:.1f} before"


if __name__ == "__main__":
    main()
