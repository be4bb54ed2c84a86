"""One contestant's process: what it is told, what it says back, and what it holds in memory.

It reads lines from its standard input, ``step`` or the end of the file, and answers each with one line of JSON. All
contestants take the same settings from a `Job`. Nothing of clawrl is imported here: one of them runs in another
interpreter.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.train_work import Piece, read_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``tokens`` is the budget of one forward and backward pass, padding included.

    ``first`` is a folder for gradients and weights of the first step, or None.
    """

    model: str
    pieces: str
    dtype: str
    tokens: int
    threads: int
    first: str | None = None
    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28

    @property
    def samples(self) -> list[Piece]:
        return read_pieces(Path(self.pieces))

    def line(self) -> str:
        return json.dumps(asdict(self))


class Clock:
    """Adds up what a step takes: ``seconds`` on the wall, ``cpu_seconds`` of all threads of this process.

    Where other programs use the machine, the first grow with them and the second hardly.
    """

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self.resume()

    def resume(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._wall
        self.cpu_seconds += time.process_time() - self._cpu


class Channel:
    def __init__(self) -> None:
        """Takes standard output for the answers: whatever else is printed goes to standard error."""
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        told = json.loads(sys.argv[1])
        self.job = Job(**{**told, "betas": tuple(told["betas"])})
        torch.set_num_threads(self.job.threads)
        torch.manual_seed(0)
        self._steps = 0

    def ready(self) -> None:
        """Said once, with the model loaded. What is used above this is what training takes."""
        self.say(loaded_mb=memory_mb("VmRSS"))

    def told_to_step(self) -> bool:
        return sys.stdin.readline().strip() == "step"

    def stepped(self, *, clock: Clock, loss: float, grad_norm: float, passed_tokens: int) -> None:
        """``passed_tokens`` went through the model, padding included."""
        self._steps += 1
        self.say(
            seconds=clock.seconds,
            cpu_seconds=clock.cpu_seconds,
            loss=loss,
            grad_norm=grad_norm,
            passed_tokens=passed_tokens,
            peak_mb=memory_mb("VmHWM"),
        )
        if self._steps == 1:
            # What was kept of the first step is no part of training: the peak is counted from here on.
            Path("/proc/self/clear_refs").write_text("5")

    def keep_first(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Gradients before they are clipped, or weights after the step; only those of the first are kept."""
        if self.job.first is not None and self._steps == 0:
            whole = {name: tensor.detach().float().contiguous().clone() for name, tensor in tensors.items()}
            save_file(whole, Path(self.job.first) / f"{what}.safetensors")

    def say(self, **figures: Any) -> None:
        print(json.dumps(figures), file=self._answers, flush=True)


def memory_mb(what: str) -> float:
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {what}: memory can be measured on Linux only")
    return int(found[1]) / 1024
