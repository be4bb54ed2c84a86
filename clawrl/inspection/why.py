"""Why a turn has not trained, or not yet: one sentence with the turn's own facts, one that says what to do.

A pure function of the turn's life, the deployment and the situation. Every drop reason and every state has its entry; a
field that the remedy names is one of the deployment's.
"""

from __future__ import annotations

from collections.abc import Mapping

from clawrl.config import Deployment
from clawrl.inspection.case import Case, Explain, Why, go_on, paused, score, since
from clawrl.inspection.situation import Situation
from clawrl.inspection.why_dropped import DROPS
from clawrl.ledger.life import TurnLife
from clawrl.messages import TurnState


def explain(life: TurnLife, deployment: Deployment, situation: Situation) -> Why:
    case = Case(life=life, deployment=deployment, situation=situation)
    reason = life.row.drop_reason
    return STATES[life.row.state](case) if reason is None else DROPS[reason](case)


def _served(case: Case) -> Why:
    return Why(sentence="It has just been recorded.", remedy="Ask again in a moment: it will wait for what comes next.")


def _awaiting_next(case: Case) -> Why:
    row, idle_s = case.life.row, case.deployment.ledger.idle_timeout_s
    left_s = max(row.state_at + idle_s - case.situation.now, 0.0)
    return Why(
        sentence=f"It waits for what comes next in session {row.session!r}, for {left_s:.0f} more seconds at most "
        f"(ledger.idle_timeout_s is {idle_s:g}).",
        remedy="Go on with the conversation, or say what the answer was worth: "
        f"`clawrl feedback --turn {row.turn_id} -- SCORE`.",
    )


def _judging(case: Case) -> Why:
    if case.situation.judging_now:
        where = "The judge has it in hand"
    else:
        where = f"It waits for the judge with {case.life.ahead} turns before it"
    return Why(
        sentence=f"{where}, since {since(case)}.",
        remedy="If the judge falls behind, raise judge.verdict.concurrency or the replicas of the Judge deployment; "
        "`clawrl status` says how long a judgement takes.",
    )


def _judged(case: Case) -> Why:
    pause = case.situation.pause
    if pause is None:
        return Why(
            sentence="It has been judged and is on its way to the queue.",
            remedy="Ask again in a moment.",
        )
    return Why(sentence=f"It has been judged{score(case)}, but {paused(case)}.", remedy=go_on(case))


def _queued(case: Case) -> Why:
    situation, training = case.situation, case.deployment.trainer.training
    place = f"It is number {case.life.ahead + 1} of {situation.queued} in the queue"
    if situation.pause is not None:
        return Why(sentence=f"{place}, but {paused(case)}.", remedy=go_on(case))
    if situation.lent_step is not None:
        return Why(
            sentence=f"{place}, and the trainer has the turns of step {situation.lent_step} in hand.",
            remedy=f"Nothing to do; a step takes up to {training.batch_size} turns (trainer.training.batch_size).",
        )
    if situation.waits is not None:
        return Why(
            sentence=f"{place}, and the trainer waits {situation.waits}.",
            remedy=f"A batch needs {training.batch_size} turns (trainer.training.batch_size); "
            f"trainer.training.schedule is `{training.schedule.when}` and says when one may be taken.",
        )
    return Why(
        sentence=f"{place}; a batch is ready and the trainer has not taken it yet (it is {situation.trainer}).",
        remedy="If that stays so, look at the trainer in `clawrl status` and at its log.",
    )


def _leased(case: Case) -> Why:
    row, until = case.life.row, case.life.lease_until
    held = "its optimizer step is being taken"
    if until is not None:
        held = (
            f"the trainer has {max(until - case.situation.now, 0.0):.0f} more seconds before it goes back to the queue"
        )
    return Why(
        sentence=f"It is in the batch of step {row.step}, since {since(case)}; {held}.",
        remedy="Nothing to do; if steps do not end in time, raise trainer.training.lease_timeout_s or lower "
        "trainer.training.batch_size.",
    )


def _applied(case: Case) -> Why:
    every = case.deployment.trainer.training.checkpoint_every
    return Why(
        sentence=f"Step {case.life.row.step} has learned from it; it counts as trained with the next checkpoint, the "
        f"last one is of step {case.situation.checkpointed_step}.",
        remedy=f"Nothing to do; a checkpoint is written every {every} steps (trainer.training.checkpoint_every).",
    )


def _trained(case: Case) -> Why:
    return Why(
        sentence=f"It has trained: it was in the batch of step {case.life.row.step}, which a checkpoint holds.",
        remedy="Nothing to do.",
    )


def _dropped(case: Case) -> Why:
    raise ValueError("a dropped turn is explained by its reason")


STATES: Mapping[TurnState, Explain] = {
    TurnState.SERVED: _served,
    TurnState.AWAITING_NEXT: _awaiting_next,
    TurnState.JUDGING: _judging,
    TurnState.JUDGED: _judged,
    TurnState.QUEUED: _queued,
    TurnState.LEASED: _leased,
    TurnState.APPLIED: _applied,
    TurnState.TRAINED: _trained,
    TurnState.DROPPED: _dropped,
}
