"""How turns are judged: the verdict, the hints, the teacher."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from clawrl.plugins import is_dotted
from clawrl.strict import StrictConfig

_ELSEWHERE = "package.module:function"
_COLDEST = 0.01
"""What engines sample at, 0 apart: logits divided by less overflow."""


class JudgingConfig(StrictConfig):
    """The verdict, and how often a judge is asked before the turn counts as an abstention.

    ``probability``: +1 above ``margin`` nats of calibrated log-odds, -1 below ``-margin``, else 0; reads ``labels``
    to ``max_evidence_chars``. ``written``: the majority of ``votes`` opinions in words; reads ``votes`` to
    ``max_tokens``. A dotted path names a reward function of one's own.
    """

    kind: str = Field("probability", description=f"probability, written or {_ELSEWHERE}")
    labels: tuple[str, str] = Field((" good", " bad"), description="single tokens of the judge: good, then bad")
    margin: float = Field(
        0.0, ge=0.0, description="nats of calibrated log-odds up to which a probability verdict is neutral"
    )
    max_request_chars: int = Field(
        80, gt=0, description="characters of the request that a probability verdict is shown; the middle is left out"
    )
    max_response_chars: int = Field(60, gt=0, description="characters of the answer that it is shown")
    max_evidence_chars: int = Field(240, gt=0, description="characters of the evidence that it is shown")
    votes: int = Field(3, gt=0, description="opinions of a written verdict; the majority decides")
    temperature: float = Field(
        0.6, ge=0.0, allow_inf_nan=False, description="of a written verdict; 0 is greedy, else 0.01 or more"
    )
    max_tokens: int = Field(512, gt=0, description="of one vote, its reasoning included")
    timeout_s: float = Field(60.0, gt=0, description="one attempt at the verdict; hints.timeout_s comes on top")
    attempts: int = Field(3, gt=0, description="times that a judge is asked before the turn counts as an abstention")
    backoff_s: float = Field(
        1.0, ge=0.0, description="seconds before the second attempt; twice as many before each further one"
    )
    concurrency: int = Field(4, gt=0, description="turns that are being judged at once, over all judge replicas")

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        return _known(kind, "kind", ("probability", "written"))

    @field_validator("temperature")
    @classmethod
    def _can_be_sampled(cls, temperature: float) -> float:
        return _sampled(temperature)


class HintsConfig(StrictConfig):
    """Where hints come from and which are kept: longer than ``min_chars``, shortest first, ``max_hints`` at most.

    ``quoting`` repeats the user's own correction; ``written`` asks the judge model. The source is asked only if the
    method learns from hints. ``reuse`` lets known hints also teach later turns, of the same session or the same owner,
    that bring none of their own.
    """

    source: str = Field("none", description=f"none, quoting, written or {_ELSEWHERE}")
    votes: int = Field(3, gt=0, description="of a written hint")
    temperature: float = Field(
        0.6, ge=0.0, allow_inf_nan=False, description="of a written hint; 0 is greedy, else 0.01 or more"
    )
    max_tokens: int = Field(256, gt=0, description="of one vote, its reasoning included")
    max_hints: int = Field(3, gt=0, description="kept of one turn, the shortest first")
    min_chars: int = Field(10, ge=0, description="characters that a hint must have more of, or it is left out")
    timeout_s: float = Field(30.0, gt=0, description="a source that takes longer loses its hints, not the verdict")
    reuse: Literal["off", "session", "owner"] = Field(
        "off",
        description="known hints also teach later turns that bring none of their own: of the same session, or of the "
        "same owner",
    )

    @field_validator("source")
    @classmethod
    def _is_known(cls, source: str) -> str:
        return _known(source, "source", ("none", "quoting", "written"))

    @field_validator("temperature")
    @classmethod
    def _can_be_sampled(cls, temperature: float) -> float:
        return _sampled(temperature)

    @model_validator(mode="after")
    def _there_is_something_to_reuse(self) -> "HintsConfig":
        if self.source == "none" and self.reuse != "off":
            raise ValueError(f"reuse: {self.reuse} has no hints to reuse with source: none; set reuse to off")
        return self


class TeacherConfig(StrictConfig):
    """Who gives the log-probs of a response after it has read a hint; ``label`` introduces the hint in the prompt.

    ``version`` of a ``policy`` teacher: 0 is the starting weights, N that published version, ``current`` what serves.
    N must be a version whose snapshot is still on disk when the judge starts: one of the newest
    ``publish.keep_snapshots``, the newest two good ones, or the start.
    """

    model: Literal["judge", "policy"] = Field(
        "judge", description="whose log-probs teach: the judge's model, or a version of the policy"
    )
    version: int | Literal["current"] = Field(
        0, description="of a policy teacher: 0 is the starting weights, N that published version, current what serves"
    )
    label: str = Field("", description="text that introduces the hint in the teacher's prompt")
    timeout_s: float = Field(60.0, gt=0, description="one attempt")
    attempts: int = Field(2, gt=0, description="times that the teacher is asked before the turn has no targets")
    concurrency: int = Field(4, gt=0, description="turns that are being taught at once, over all judge replicas")

    @model_validator(mode="after")
    def _only_the_policy_has_versions(self) -> "TeacherConfig":
        if isinstance(self.version, int) and self.version < 0:
            raise ValueError(f"version {self.version} does not exist; use 0 for the starting weights, or current")
        if self.model == "judge" and self.version != 0:
            raise ValueError(f"version {self.version} needs model: policy; the judge's model has no versions")
        return self


def _sampled(temperature: float) -> float:
    if 0.0 < temperature < _COLDEST:
        raise ValueError(f"temperature {temperature} is too low to sample at; use 0 for greedy, or {_COLDEST} and more")
    return temperature


def _known(value: str, field: str, names: tuple[str, ...]) -> str:
    if value not in names and not is_dotted(value):
        raise ValueError(f"{field} {value!r} is unknown; choose one of {', '.join(names)} or {_ELSEWHERE}")
    return value
