"""What the sections share: telling figures, the device and its memory, a running engine and one answer of it."""

from __future__ import annotations

import contextlib
import platform
import resource
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import torch
import transformers

from clawrl.engine.protocol import GenerateRequest
from clawrl.engine.transformers import TransformersEngine
from clawrl.messages import SamplingParams
from tests.engine_tools import Answer, collect, never_ending
from tests.gpu.report import Row, Verdict, unit_of
from tests.gpu.runner import Job
from tests.gpu.shapes import SHAPES, Shape

# In nats, the mean and the largest difference. bf16 has 8 bits: a logit of 4 is off by up to 0.016, and layers add up.
LIMITS = {"float32": (1e-4, 1e-3), "bfloat16": (0.05, 0.5)}


class Bench:
    """What every section needs: the device, its memory and a way to tell figures."""

    def __init__(self, job: Job, tell: Callable[[Row | dict[str, str]], None]) -> None:
        self.job = job
        self.shape: Shape = SHAPES[job.shape]
        self.device = torch.device(job.device)
        self._tell = tell
        cuda = self.device.type == "cuda"
        self.device_name = torch.cuda.get_device_name() if cuda else "cpu"
        self._tell(
            {
                "device": self.device_name,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            }
        )

    def figure(self, figure: str, value: float | None, note: str = "", *, ok: bool | None = None) -> None:
        """``ok`` says whether a check passed; without one the figure is only reported."""
        verdict = Verdict.NONE if ok is None else Verdict.OK if ok else Verdict.FAILED
        self._tell(
            Row(
                shape=self.job.shape,
                section=self.job.section,
                figure=figure,
                value=value,
                unit=unit_of(self.job.section, figure),
                verdict=verdict,
                note=note,
            )
        )

    def difference(self, figure: str, found: np.ndarray, dtype: str, *, largest: bool = False) -> None:
        """A row that fails where ``found``, absolute differences, is over the data type's limit."""
        mean, most = LIMITS[dtype]
        value, limit = (found.max(), most) if largest else (found.mean(), mean)
        self.figure(figure, float(value), f"{dtype}: at most {limit}, {found.size} tokens", ok=bool(value <= limit))

    @contextlib.contextmanager
    def part(self, *figures: str) -> Iterator[None]:
        """A failure inside costs ``figures`` only; the section goes on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            for figure in figures:
                self._tell(
                    Row(
                        shape=self.job.shape,
                        section=self.job.section,
                        figure=figure,
                        value=None,
                        unit=unit_of(self.job.section, figure),
                        verdict=Verdict.MISSING,
                        note=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200],
                    )
                )

    def wait(self) -> None:
        """Until the device has done what it was told: a clock that is read earlier shows too little."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_memory(self) -> None:
        if self.device.type == "cuda":
            reserved = torch.cuda.max_memory_reserved() / 1e9
            self.figure("peak memory", torch.cuda.max_memory_allocated() / 1e9, f"allocated; {reserved:.1f} reserved")
        else:
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
            self.figure("peak memory", resident, "resident, the interpreter and torch included")


@contextlib.asynccontextmanager
async def started(bench: Bench, dtype: str) -> AsyncIterator[TransformersEngine]:
    """An engine that ends no answer before its last token."""
    running = TransformersEngine(bench.job.folder, bench.shape.engine_config(bench.job.device, dtype))
    await running.start()
    if running.model.device.type != bench.device.type:
        raise AssertionError(f"the engine's model is on {running.model.device}, asked for was {bench.device}")
    never_ending(running)
    try:
        yield running
    finally:
        await running.stop()


def prompt_of(shape: Shape, seed: int, length: int) -> np.ndarray:
    return tokens(np.random.default_rng(1000 + seed), shape, length)


async def answer(
    running: TransformersEngine, prompt: np.ndarray, new: int, name: str, temperature: float = 1.0
) -> tuple[Answer, float]:
    """And the seconds until its first token."""
    sampling = SamplingParams(max_tokens=new, temperature=temperature)
    asked = GenerateRequest(request_id=name, prompt_ids=prompt, sampling=sampling)
    chunks, first, began = [], 0.0, time.perf_counter()
    async for chunk in running.generate(asked):
        first = first or time.perf_counter() - began
        chunks.append(chunk)
    return collect(prompt, chunks), first


def tokens(rng: np.random.Generator, shape: Shape, count: int) -> np.ndarray:
    return rng.integers(0, shape.vocabulary, count).astype(np.int32)
