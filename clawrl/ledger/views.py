"""What the ledger answers with: plain frozen values, none of which is a handle into the database."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clawrl.messages import (
    DropReason,
    Judgement,
    JudgeRequest,
    TeacherTargets,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """Where a request belongs. ``to_judge`` is what it just proved about its parent, at most once per parent."""

    session: str
    parent: TurnId | None
    to_judge: JudgeRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The answer to a served turn. ``to_judge`` collects every request that this call made judgeable."""

    new: bool
    session: str
    parent: TurnId | None
    to_judge: tuple[JudgeRequest, ...]


class FeedbackOutcome(enum.StrEnum):
    """``too_late``: written down, but nothing will be learned from it."""

    TAKEN = "taken"
    TOO_LATE = "too_late"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackTaken:
    """What became of feedback: ``state`` is where its turn is now, ``to_judge`` the case that it (re)opened."""

    outcome: FeedbackOutcome
    state: TurnState
    to_judge: JudgeRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """A turn with all that was concluded about it; ``teacher`` is absent where nobody taught."""

    turn: Turn
    judgement: Judgement
    teacher: TeacherTargets | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTurns:
    """Judged turns lent to one run for one step; void after ``deadline`` unless confirmed."""

    lease_id: str
    run_id: str
    step: int
    deadline: float
    turns: tuple[JudgedTurn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restored checkpoint did: turns that it proved trained, turns that it sent back to the queue.

    ``out_of_reach`` is true when turns of later steps were already pruned, hence cannot be replayed.
    """

    trained: int
    requeued: int
    out_of_reach: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Who stopped the queue from growing, why, and since when."""

    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """``arrivals`` are requests that never became a turn; ``leases`` counts the turns that came back."""

    no_evidence: int
    arrivals: int
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Every turn ever recorded, by where it is now; pruned ones count where they ended."""

    recorded: int
    by_state: Mapping[TurnState, int]
    dropped: Mapping[DropReason, int]

    @property
    def adds_up(self) -> bool:
        return self.recorded == sum(self.by_state.values()) and (
            self.by_state.get(TurnState.DROPPED, 0) == sum(self.dropped.values())
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "recorded": self.recorded,
            "adds_up": self.adds_up,
            "by_state": {str(state): n for state, n in self.by_state.items()},
            "dropped": {str(reason): n for reason, n in self.dropped.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeStats:
    judged: int
    abstained: int
    mean_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReward:
    """The mean reward of some ``turns`` that this policy version began."""

    version: int
    mean: float
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One turn for inspection, without its text and tokens. ``hints`` counts them; ``taught`` means targets exist."""

    seq: int
    turn_id: TurnId
    owner: str
    session: str
    parent: TurnId | None
    kind: TurnKind
    state: TurnState
    drop_reason: DropReason | None
    step: int | None
    oldest_version: int | None
    newest_version: int | None
    prompt_tokens: int
    response_tokens: int
    finished_at: float
    state_at: float
    verdict: Verdict | None
    score: float | None
    reward: float | None
    hints: int
    taught: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    turn_id: TurnId
    source: TurnState | None
    target: TurnState
    detail: str
    at: float


class StepState(enum.StrEnum):
    """``undone``: a checkpoint without this step was restored."""

    APPLIED = "applied"
    TRAINED = "trained"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The current training run; ``stats`` are the trainer's own of its last step, if it has taken one."""

    run_id: str
    restored_step: int
    stats: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step; ``reward_mean`` is over its turns that have a reward, ``stats`` is the trainer's own.

    ``seq`` is its place in the history, undone steps included.
    """

    run_id: str
    step: int
    state: StepState
    turns: int
    reward_mean: float | None
    stats: Mapping[str, Any]
    at: float
    seq: int = 0
