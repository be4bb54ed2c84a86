"""What the trainer is lent and what it publishes."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from clawrl.messages.opinions import TeacherTargets
from clawrl.messages.turns import LogProbs, TokenIds, TurnId, VersionSpan, check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A turn made trainable. ``mask`` bool[R] marks the tokens that the loss may touch.

    ``rl_mask`` says whether ``reward`` counts, ``opd_mask`` whether ``teacher`` does; a teacher that failed is absent,
    never a row of zeros. ``group`` names the answers to one request that are compared with each other.
    """

    turn_id: TurnId
    prompt_ids: TokenIds
    response_ids: TokenIds
    behaviour_logps: LogProbs
    mask: npt.NDArray[np.bool_]
    spans: tuple[VersionSpan, ...]
    temperature: float
    reward: float
    rl_mask: bool = True
    teacher: TeacherTargets | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        check_tokens(self.turn_id, self.response_ids, self.behaviour_logps, self.spans)
        if self.mask.shape != self.response_ids.shape:
            raise ValueError(f"turn {self.turn_id}: mask {self.mask.shape} is not one flag per response token")
        if not self.temperature > 0.0:
            raise ValueError(f"turn {self.turn_id}: temperature {self.temperature} cannot be trained at")
        if not math.isfinite(self.reward):
            raise ValueError(f"turn {self.turn_id}: reward {self.reward} is not finite")
        if self.teacher is not None and self.teacher.logps.shape[1:] != self.response_ids.shape:
            raise ValueError(
                f"turn {self.turn_id}: the teacher speaks of {self.teacher.logps.shape[1]} tokens, "
                f"the response has {len(self.response_ids)}"
            )

    @property
    def opd_mask(self) -> bool:
        return self.teacher is not None

    @property
    def oldest_version(self) -> int:
        return min(span.version for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Samples lent to one trainer run for one optimizer step. Void after ``deadline`` unless confirmed."""

    lease_id: str
    run_id: str
    step: int
    samples: tuple[Sample, ...]
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPosition:
    """How far weights have come in one ledger's history: ``run`` had taken every step up to ``step``."""

    ledger: str
    run: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """``dtype`` is torch's name, which says how many bits there are; of those that say nothing each is a byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes, without asking torch."""
        bits = re.search(r"\d+", self.dtype)
        return math.prod(self.shape) * (max(int(bits.group()) // 8, 1) if bits else 1)


class WeightKind(enum.StrEnum):
    FULL = "full"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """Low-rank adapters on the linear layers that ``targets`` name: W becomes W + ``alpha`` / ``rank`` · B A."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What adapters need to be a policy: their shape, and the whole weights that they were trained on.

    Those are in the snapshot named by ``base_version`` and ``base_digest``, beside that of the adapters.
    """

    shape: AdapterShape
    base_version: int
    base_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """The contents of one policy version: tensors in order, how they are cut into buckets, one digest.

    ``buckets[i]`` is the half-open range of tensor indices that travel together as one flat byte
    buffer; ``digest`` is over all bytes in order; a receiver checks it once, before it votes for the commit.
    ``addition`` says to what adapters are added; whole weights have none.
    """

    version: int
    kind: WeightKind
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[tuple[int, int], ...]
    digest: str
    addition: Addition | None = None

    def __post_init__(self) -> None:
        if (self.kind is WeightKind.ADAPTER) != (self.addition is not None):
            raise ValueError(f"version {self.version}: adapters, and they alone, say what they are an addition to")

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.size for spec in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A published version: which optimizer step made it and where its snapshot lies."""

    version: int
    step: int
    snapshot: str
    digest: str
    published_at: float
    stats: Mapping[str, Any] = field(default_factory=dict)
