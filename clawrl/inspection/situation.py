"""What holds up a turn besides itself, at the moment when somebody asks; gathered by the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from clawrl.ledger.views import Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """``waits`` is what the next step waits for, as the end of "waits ..."; ``None`` if for nothing but the trainer.

    ``lent_step`` is the step that the trainer has the turns for. ``judging_now``: a judge has this very turn in hand.
    ``problem`` is why no sample can be made of it, where that was found out.
    """

    now: float
    pause: Pause | None
    waits: str | None
    lent_step: int | None
    queued: int
    judging_now: bool
    trainer: str
    checkpointed_step: int
    problem: str = ""
