"""The seats of a deployment, each a model on its GPUs, and what is known of them before anything starts.

A seat of which nothing can be known is a note and no problem: a model may well be unknown here and known where it
will run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clawrl.engine.config import EngineConfig
from clawrl.models import ModelConfig
from clawrl.sizing.architecture import Architecture, UnknownArchitecture, cut_problem
from clawrl.sizing.fit import Fit, fit_engine, fit_trainer
from clawrl.sizing.gpus import gpu_words
from clawrl.sizing.lookup import find_architecture
from clawrl.sizing.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat(ABC):
    """``path`` is the part's in the configuration, as in ``policy``."""

    path: str
    model: ModelConfig
    resources: Resources

    @abstractmethod
    def fit(self, shape: Architecture, gib: float, gpu: str) -> Fit: ...

    @abstractmethod
    def problems(self, shape: Architecture) -> Iterator[str]:
        """What is wrong whatever the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeat(Seat):
    engine: EngineConfig

    def fit(self, shape: Architecture, gib: float, gpu: str) -> Fit:
        return fit_engine(shape, self.engine, gib=gib, num_gpus=self.resources.num_gpus, gpu=gpu)

    def problems(self, shape: Architecture) -> Iterator[str]:
        tp_size, context = self.engine.tp_size, self.engine.context_length
        if self.engine.kind == "sglang" and (why := cut_problem(shape, tp_size)) is not None:
            yield f"{self.path}.engine.tp_size: {tp_size} {why}; use one that does"
        if shape.context and context > shape.context:
            yield (
                f"{self.path}.engine.context_length: {context} is more than the {shape.context} positions that "
                f"{self.model.source} was made for; lower it to that"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSeat(Seat):
    dtype: str
    world_size: int
    reference: bool
    adapters: bool = False
    offload: bool = False

    def fit(self, shape: Architecture, gib: float, gpu: str) -> Fit:
        return fit_trainer(
            shape,
            self.dtype,
            self.world_size,
            reference=self.reference,
            adapters=self.adapters,
            offload=self.offload,
            gib=gib,
            num_gpus=self.resources.num_gpus,
            gpu=gpu,
        )

    def problems(self, shape: Architecture) -> Iterator[str]:
        yield from ()


@dataclass(slots=True)
class SizingReport:
    """``words`` has the figures by the path of the seat."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)


def size_up(seats: Sequence[Seat]) -> SizingReport:
    report = SizingReport()
    unknown: dict[str, list[str]] = {}
    for seat in seats:
        try:
            shape = find_architecture(seat.model)
        except UnknownArchitecture as error:
            if seat.resources.num_gpus:
                unknown.setdefault(f"{seat.model.source}: {error}", []).append(seat.path)
            continue
        report.problems += seat.problems(shape)
        if not seat.resources.num_gpus:
            continue
        gib = seat.resources.gpu_gib
        if gib is None:
            unknown.setdefault("neither accelerator_type nor gpu_memory_gib says how large a GPU is", []).append(
                f"{seat.path}.resources"
            )
            continue
        fit = seat.fit(shape, gib, gpu_words(seat.resources.accelerator_type, gib))
        report.words[seat.path] = fit.words
        if fit.problem is not None:
            report.problems.append(f"{seat.path}.{fit.problem}")
    report.notes += [f"{', '.join(paths)}: GPU memory was not checked: {why}" for why, paths in unknown.items()]
    return report
