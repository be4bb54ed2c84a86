"""What an explanation may look at, and words that several need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from clawrl.config import Deployment
from clawrl.inspection.situation import Situation
from clawrl.ledger.life import TurnLife
from clawrl.messages import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Whole sentences, for a person."""

    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that an explanation may look at."""

    life: TurnLife
    deployment: Deployment
    situation: Situation

    @property
    def sampling(self) -> SamplingParams | None:
        return None if self.life.text is None else self.life.text.turn.sampling

    @property
    def detail(self) -> str:
        """What was written down with the last move, without its first word, the state's own fact."""
        moves = self.life.transitions
        return moves[-1].detail.partition(" ")[2] if moves else ""


Explain = Callable[[Case], Why]


def paused(case: Case) -> str:
    pause = case.situation.pause
    assert pause is not None
    return f"learning has been paused by {pause.by} since {clock(pause.at)}: {short(pause.reason) or 'no reason given'}"


def go_on(case: Case) -> str:
    pause = case.situation.pause
    assert pause is not None
    if pause.by == "guard":
        return "Look at what alarmed the guard (`clawrl status`, guards.alarms), then `clawrl resume`."
    return "`clawrl resume` lets it into the queue."


def method_of(case: Case) -> str:
    return str(getattr(case.deployment.trainer.method, "name", "of this deployment"))


def since(case: Case) -> str:
    return f"{max(case.situation.now - case.life.row.state_at, 0.0):.0f} seconds"


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def score(case: Case) -> str:
    score = case.life.row.score
    return "" if score is None else f" (score {score:.2f})"


def cuts(sampling: SamplingParams | None) -> str:
    if sampling is None:
        return "top-p, top-k or a schema"
    cuts = {
        f"top_p {sampling.top_p:g}": sampling.top_p < 1.0,
        f"top_k {sampling.top_k}": sampling.top_k > 0,
        "a JSON schema": bool(sampling.json_schema),
    }
    return ", ".join(name for name, applies in cuts.items() if applies) or "a filter"


def imposed(case: Case) -> str:
    """Where the operator's own sampling is what does not train, that is said."""
    text = case.life.text
    return " The deployment's own serving.sampling imposed that." if text is not None and text.turn.overridden else ""


def ended(sentence: str) -> str:
    """With a full stop, whatever the words are that it ends in."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:197]}..."
