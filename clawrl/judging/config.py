"""How turns are judged."""

from pydantic import Field

from clawrl.strict import StrictConfig


class JudgingConfig(StrictConfig):
    """The probability verdict: +1 above ``margin`` nats of calibrated log-odds, -1 below ``-margin``, else 0."""

    labels: tuple[str, str] = Field((" good", " bad"), description="single tokens of the judge: good, then bad")
    margin: float = Field(0.0, ge=0.0)
    max_request_chars: int = Field(80, gt=0)
    max_response_chars: int = Field(60, gt=0)
    max_evidence_chars: int = Field(240, gt=0)
    timeout_s: float = Field(60.0, gt=0, description="one attempt")
    attempts: int = Field(3, gt=0)
    backoff_s: float = Field(1.0, ge=0.0)
    concurrency: int = Field(4, gt=0)
