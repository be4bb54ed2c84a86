"""A request and the tokens that answered it, and where a turn is in its life."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np
import numpy.typing as npt

from clawrl.messages.conversation import NO_INPUTS, NOTHING_SAID, Message, TemplateInputs

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
    REDACTED = "redacted"
    FORGOTTEN = "forgotten"
    TOO_LONG = "too_long"
    SESSION_ENDED = "session_ended"
    NO_EVIDENCE = "no_evidence"
    JUDGE_ABSTAINED = "judge_abstained"
    NEUTRAL = "neutral"
    NO_HINT = "no_hint"
    TEACHER_FAILED = "teacher_failed"
    TOO_SHORT = "too_short"
    TRUNCATED = "truncated"
    REPETITIVE = "repetitive"
    DUPLICATE = "duplicate"
    REFUSED_BY_FILTER = "refused_by_filter"
    STALE = "stale"
    MALFORMED = "malformed"


class Withheld(enum.StrEnum):
    """What of a turn is not stored: nothing, the token ids (something was redacted), or all that it said."""

    NOTHING = "nothing"
    IDS = "ids"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a response is drawn, fully resolved: no field is left for an engine to default.

    ``top_k`` 0 means off. ``temperature`` 0 means greedy. ``json_schema`` is the text of a schema that the response
    must match, as JSON; empty means anything.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    json_schema: str = ""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def filtered(self) -> bool:
        """True when tokens were drawn from a truncated distribution, whose log-probs engines define differently."""
        return self.top_p < 1.0 or self.top_k > 0 or bool(self.json_schema)


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
    there is none): a turn whose ``reply_hash`` equals it is the turn that this request continues.
    ``answer_hash`` names that last assistant message alone, for a client that has rewritten what came
    before it. ``new_messages`` are the evidence for that turn: what people and tools said since, without
    what is internal to the client. ``sent`` is what the client sent after ``history``, where that is
    something else; so ``messages`` is the whole request, exactly as it is rendered with ``inputs``.
    ``segment`` names the system messages and the tools in front: the prompt of another segment cannot
    extend this one. ``group`` names answers to one request that are to be compared with each other.
    ``train_wish`` is what the request says of training, which holds for its session from here on; ``may_train`` is
    false where the key or the wish forbids it.
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
    history: tuple[Message, ...] = ()
    group: str | None = None
    inputs: TemplateInputs = NO_INPUTS
    answer_hash: str | None = None
    segment: str = ""
    sent: tuple[Message, ...] | None = None
    train_wish: bool | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.history + (self.new_messages if self.sent is None else self.sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request and the tokens that answered it, exactly as the engine sampled them.

    ``prompt_ids`` int32[P], ``response_ids`` int32[R], ``response_logps`` float32[R]; ``spans`` cover
    ``0:R`` in order without a gap. ``reply_hash`` is the hash that a continuing request will carry as
    its ``prefix_hash``, ``answer_hash`` that of the reply alone (empty for a reply that says nothing).
    ``response_text`` is what the model wrote, marks of reasoning and tool calls included; ``answer`` is what a
    client was told. The first ``reused_ids`` of the prompt are an earlier turn's, as they were sampled.
    ``session`` and ``parent`` are written by the coordinator when it links the turn, ``withheld`` by who redacts it or
    keeps nothing of it.
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
    answer_hash: str = ""
    answer: Message = NOTHING_SAID
    reused_ids: int = 0
    session: str = ""
    parent: TurnId | None = None
    withheld: Withheld = Withheld.NOTHING

    def __post_init__(self) -> None:
        check_tokens(self.turn_id, self.response_ids, self.response_logps, self.spans)


def check_tokens(turn_id: TurnId, ids: TokenIds, logps: LogProbs, spans: Sequence[VersionSpan]) -> None:
    """Raises `ValueError` unless ids and log-probs are one row of equal length that the spans cover in order."""
    if ids.shape != logps.shape or ids.ndim != 1:
        raise ValueError(f"turn {turn_id}: {ids.shape} token ids but {logps.shape} log-probs")
    end = 0
    for span in spans:
        if span.start != end or span.end <= span.start:
            raise ValueError(f"turn {turn_id}: version spans {list(spans)} leave a gap or overlap")
        end = span.end
    if end != len(ids):
        raise ValueError(f"turn {turn_id}: version spans cover {end} of {len(ids)} response tokens")
