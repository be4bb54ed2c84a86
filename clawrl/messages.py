"""The nouns that cross actors.

Everything here is plain data: frozen, slotted, keyword-only dataclasses whose token columns are
numpy arrays, so that a value pickles cheaply and means the same in every process. A constructor
refuses a value that would be a lie later (lengths that differ, a span that leaves a gap); nothing is
padded, truncated or repaired here. A field that is filled in later names its writer.

Shapes: ``P`` prompt tokens, ``R`` response tokens. Log-probabilities are natural logarithms at the
temperature that sampled the tokens. Times are seconds since the epoch.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]
TurnId = NewType("TurnId", str)


class TurnKind(enum.StrEnum):
    """``main`` turns may train; ``side`` turns (summaries, heartbeats) are served and recorded only."""

    MAIN = "main"
    SIDE = "side"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


class TurnState(enum.StrEnum):
    """Where a turn is in its life; see ``clawrl.ledger.states`` for the legal moves."""

    SERVED = "served"
    AWAITING_NEXT = "awaiting_next"
    JUDGING = "judging"
    JUDGED = "judged"
    QUEUED = "queued"
    LEASED = "leased"
    APPLIED = "applied"
    TRAINED = "trained"
    DROPPED = "dropped"


class DropReason(enum.StrEnum):
    """Why a turn does not train. Every dropped turn carries exactly one of these."""

    SIDE = "side"
    ABORTED = "aborted"
    FAILED = "failed"
    EMPTY = "empty"
    GREEDY = "greedy"
    FILTERED = "filtered"
    NOT_PERMITTED = "not_permitted"
    TOO_LONG = "too_long"
    SESSION_ENDED = "session_ended"
    NO_EVIDENCE = "no_evidence"
    JUDGE_ABSTAINED = "judge_abstained"
    NEUTRAL = "neutral"
    STALE = "stale"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message reduced to what evidence and hashing need: a role and its text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a response is drawn, fully resolved: no field is left for an engine to default.

    ``top_k`` 0 means off. ``temperature`` 0 means greedy.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def filtered(self) -> bool:
        """True when tokens were drawn from a truncated distribution, whose log-probs engines define differently."""
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Response tokens ``start:end`` were sampled by policy ``version``."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a request says about the conversation it belongs to; made by the ingress before generation.

    ``prefix_hash`` names the messages up to and including the last assistant message (``None`` when
    there is none): a turn whose ``reply_hash`` equals it is the turn that this request continues, and
    ``new_messages`` are then its evidence.
    """

    turn_id: TurnId
    session: str | None
    owner: str
    kind: TurnKind
    prefix_hash: str | None
    messages_hash: str
    new_messages: tuple[Message, ...]
    ends_session: bool
    arrived_at: float
    may_train: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request and the tokens that answered it, exactly as the engine sampled them.

    ``prompt_ids`` int32[P], ``response_ids`` int32[R], ``response_logps`` float32[R]; ``spans`` cover
    ``0:R`` in order without a gap. ``reply_hash`` is the hash that a continuing request will carry as
    its ``prefix_hash``. ``session`` and ``parent`` are written by the coordinator when it links the turn.
    """

    turn_id: TurnId
    arrival: Arrival
    reply_hash: str
    response_text: str
    prompt_ids: TokenIds
    response_ids: TokenIds
    response_logps: LogProbs
    spans: tuple[VersionSpan, ...]
    sampling: SamplingParams
    finish_reason: FinishReason
    started_at: float
    finished_at: float
    replica: str
    overridden: bool = False
    session: str = ""
    parent: TurnId | None = None

    def __post_init__(self) -> None:
        _check_tokens(self.turn_id, self.response_ids, self.response_logps, self.spans)


class Verdict(enum.IntEnum):
    """A judge's opinion of one turn. Abstaining is not an opinion and has no number: see `Judgement`."""

    BAD = -1
    NEUTRAL = 0
    GOOD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """What a judge is shown: the request, the answer and the evidence."""

    turn_id: TurnId
    request: tuple[Message, ...]
    response: str
    evidence: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judge's answer for one turn. ``verdict is None`` is an abstention and never becomes a reward.

    ``score`` is the judge's own scale (for the probability verdict: calibrated log-odds in nats);
    ``hints`` stay empty until a method asks for them; ``seconds`` is the cost.
    """

    turn_id: TurnId
    verdict: Verdict | None
    score: float | None
    votes: tuple[int, ...]
    judge: str
    seconds: float
    hints: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A turn made trainable. ``mask`` bool[R] marks the tokens that the loss may touch.

    ``rl_mask`` says whether ``reward`` counts. Teacher fields belong to distillation methods and are
    absent (``opd_mask`` false) otherwise.
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
    opd_mask: bool = False

    def __post_init__(self) -> None:
        _check_tokens(self.turn_id, self.response_ids, self.behaviour_logps, self.spans)
        if self.mask.shape != self.response_ids.shape:
            raise ValueError(f"turn {self.turn_id}: mask {self.mask.shape} is not one flag per response token")
        if not self.temperature > 0.0:
            raise ValueError(f"turn {self.turn_id}: temperature {self.temperature} cannot be trained at")
        if not math.isfinite(self.reward):
            raise ValueError(f"turn {self.turn_id}: reward {self.reward} is not finite")

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
class TensorSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]


class WeightKind(enum.StrEnum):
    FULL = "full"
    ADAPTER = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """The contents of one policy version: tensors in order, how they are cut into buckets, one digest.

    ``buckets[i]`` is the half-open range of tensor indices that travel together as one flat byte
    buffer; ``digest`` is over all bytes in order; a receiver checks it once, before it votes for the commit.
    """

    version: int
    kind: WeightKind
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[tuple[int, int], ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A published version: which optimizer step made it and where its snapshot lies."""

    version: int
    step: int
    snapshot: str
    digest: str
    published_at: float
    stats: Mapping[str, Any] = field(default_factory=dict)


def _check_tokens(turn_id: TurnId, ids: TokenIds, logps: LogProbs, spans: Sequence[VersionSpan]) -> None:
    if ids.shape != logps.shape or ids.ndim != 1:
        raise ValueError(f"turn {turn_id}: {ids.shape} token ids but {logps.shape} log-probs")
    end = 0
    for span in spans:
        if span.start != end or span.end <= span.start:
            raise ValueError(f"turn {turn_id}: version spans {list(spans)} leave a gap or overlap")
        end = span.end
    if end != len(ids):
        raise ValueError(f"turn {turn_id}: version spans cover {end} of {len(ids)} response tokens")
