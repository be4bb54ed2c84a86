"""What is thought of a turn: by the judge, by a person, by the teacher, by the frozen model."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clawrl.messages.conversation import NO_INPUTS, Message, TemplateInputs
from clawrl.messages.turns import LogProbs, TokenIds, Turn, TurnId


class Verdict(enum.IntEnum):
    """A judge's opinion of one turn. Abstaining is not an opinion and has no number: see `Judgement`."""

    BAD = -1
    NEUTRAL = 0
    GOOD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a person said of a turn on purpose: ``score`` in -1..1 outranks the judge, ``comment`` is evidence."""

    turn_id: TurnId
    score: float
    comment: str
    given_at: float

    def __post_init__(self) -> None:
        if not -1.0 <= self.score <= 1.0:
            raise ValueError(f"turn {self.turn_id}: feedback score {self.score} is outside -1..1")

    @property
    def verdict(self) -> Verdict:
        return Verdict(int(math.copysign(1, self.score)) if self.score else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """What a judge is shown: the request, the answer and the evidence.

    With ``feedback`` the verdict is settled and only hints are asked for; its comment is among the evidence. The
    coordinator fills in ``turn`` where a reward function of the user's is to see all of it.
    """

    turn_id: TurnId
    request: tuple[Message, ...]
    response: str
    evidence: tuple[Message, ...]
    feedback: Feedback | None = None
    turn: Turn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judge's answer for one turn. ``verdict is None`` is an abstention and never becomes a reward.

    ``score`` is the judge's own scale (for the probability verdict: calibrated log-odds in nats); ``seconds`` is the
    cost. ``feedback`` is a person's explicit score and outranks the verdict. ``hints`` say what would have made the
    answer better, shortest first.
    """

    turn_id: TurnId
    verdict: Verdict | None
    score: float | None
    votes: tuple[int, ...]
    judge: str
    seconds: float
    hints: tuple[str, ...] = ()
    detail: str = ""
    feedback: float | None = None

    @property
    def reward(self) -> float | None:
        """In -1..1; ``None`` when nobody has an opinion."""
        if self.feedback is not None:
            return self.feedback
        return None if self.verdict is None else float(self.verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherRequest:
    """Ask a teacher what it thinks of ``response_ids`` after being told each of ``hints`` (never empty).

    ``messages`` and ``inputs`` are the whole request, ``prompt_ids`` int32[P] what it was rendered to when the turn was
    served: the first ``reused_ids`` of them are those of an earlier turn, as they were sampled.
    """

    turn_id: TurnId
    messages: tuple[Message, ...]
    prompt_ids: TokenIds
    response_ids: TokenIds
    temperature: float
    hints: tuple[str, ...]
    inputs: TemplateInputs = NO_INPUTS
    reused_ids: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherTargets:
    """A hinted teacher's log-probs for a response that it did not write; one row per hint, shortest hint first.

    ``logps`` float32[H, R] of the response's own tokens; ``topk_ids`` int32[H, R, K] and ``topk_logps`` float32
    [H, R, K] of the teacher's K most likely tokens at each position, best first (K may be 0). All are at the
    temperature that sampled the response. ``version`` is the teacher's policy version, 0 for a frozen model.
    """

    hints: tuple[str, ...]
    logps: npt.NDArray[np.float32]
    topk_ids: npt.NDArray[np.int32]
    topk_logps: npt.NDArray[np.float32]
    teacher: str
    version: int = 0

    def __post_init__(self) -> None:
        if self.logps.ndim != 2 or not self.hints or self.logps.shape[0] != len(self.hints):
            raise ValueError(f"{len(self.hints)} hints but teacher log-probs of shape {self.logps.shape}")
        if self.topk_ids.shape != self.topk_logps.shape or self.topk_ids.shape[:-1] != self.logps.shape:
            raise ValueError(
                f"teacher top-k ids {self.topk_ids.shape} and log-probs {self.topk_logps.shape} "
                f"do not fit {self.logps.shape}"
            )
        if not (np.isfinite(self.logps).all() and np.isfinite(self.topk_logps).all()):
            raise ValueError("a teacher log-prob is not finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalsRequest:
    """Ask the frozen model how a response looks to it. ``other_prompt_ids`` is the prompt of an unrelated turn."""

    turn_id: TurnId
    prompt_ids: TokenIds
    response_ids: TokenIds
    behaviour_logps: LogProbs
    temperature: float
    other_prompt_ids: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVitals:
    """One response under the frozen model, in nats per token at the sampling temperature.

    ``fluency`` is its mean log-prob given its prompt; ``on_topic_lift`` is that minus the mean log-prob given the
    other prompt; ``kl`` is the k3 estimate of KL(policy || frozen model) from the sampled tokens.
    """

    fluency: float
    on_topic_lift: float
    kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """How healthy one served turn looks. ``model`` is absent where the frozen model was not asked."""

    turn_id: TurnId
    version: int
    response_tokens: int
    repetition: float
    model: ModelVitals | None = None
