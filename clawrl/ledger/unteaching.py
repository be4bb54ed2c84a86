"""What becomes of a turn when the hints that its teacher was told are forgotten, or their time is over.

Its own conversation stays. Waiting to be trained it is judged, and taught, anew; a lease that lends it is void. What is
in a training step keeps its state, without the targets: should an older checkpoint be restored it is dropped as
``forgotten``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clawrl.ledger import learned, leases
from clawrl.ledger.codec import KeyGone
from clawrl.ledger.database import Database
from clawrl.ledger.judgements import reopen
from clawrl.ledger.moves import state_of
from clawrl.ledger.states import HELD
from clawrl.ledger.unreadable import put_away
from clawrl.messages import TurnId, TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class Untaught:
    """``steps`` had learned from the targets."""

    turns: int = 0
    leases: int = 0
    steps: frozenset[int] = frozenset()


def unteach(db: Database, turn_ids: Iterable[TurnId]) -> Untaught:
    """Deletes the targets of these turns."""
    turns, voided, steps = 0, 0, set[int]()
    for turn_id in turn_ids:
        row = db.one("SELECT state, step, lease_id FROM turns WHERE turn_id = ?", turn_id)
        if row is None:
            continue
        turns += 1
        steps |= learned.steps_of(db, turn_id)
        state = TurnState(row["state"])
        if state is TurnState.LEASED:
            if db.scalar("SELECT status FROM leases WHERE lease_id = ?", row["lease_id"]) == "open":
                leases.give_back(db, row["lease_id"], "a hint in the lease was forgotten")
                voided, state = voided + 1, state_of(db, turn_id) or state
            else:
                steps.add(row["step"])
        if state in (TurnState.JUDGED, TurnState.QUEUED):
            try:
                reopen(db, turn_id, "a hint was forgotten")
            except KeyGone as error:
                put_away(db, turn_id, error)
        elif state in HELD:
            db.execute("UPDATE turns SET forgotten = 1 WHERE turn_id = ?", turn_id)
        for table in ("targets", "hint_uses"):
            db.execute(f"DELETE FROM {table} WHERE turn_id = ?", turn_id)
    return Untaught(turns=turns, leases=voided, steps=frozenset(steps))
