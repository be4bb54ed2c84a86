"""What one settled judgement says of the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clawrl.messages import Judgement, Verdict
from clawrl.metrics import catalogue
from clawrl.metrics.sink import Sink

_WORDS = {Verdict.GOOD: "good", Verdict.NEUTRAL: "neutral", Verdict.BAD: "bad", None: "abstained"}


def agreement(votes: Sequence[int]) -> float | None:
    """The share of the most frequent vote; ``None`` of fewer than two, which agree with nobody."""
    return None if len(votes) < 2 else Counter(votes).most_common(1)[0][1] / len(votes)


def tell(sink: Sink, judgement: Judgement) -> None:
    by = "person" if judgement.feedback is not None else "judge"
    sink.add(catalogue.JUDGEMENTS, verdict=_WORDS[judgement.verdict], by=by)
    sink.observe(catalogue.JUDGE_SECONDS, (judgement.seconds,))
    if (share := agreement(judgement.votes)) is not None:
        sink.observe(catalogue.AGREEMENT, (share,))
