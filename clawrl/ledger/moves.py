"""The only writer of a turn's state. Each move is checked, made and logged in the caller's transaction.

``state_at`` of a queued turn is when it became ready: what comes back from a lease or a step that was void waits on
from there, and is not made to wait anew. The log of transitions has the moments themselves. A forgotten turn that would
come back to the queue (a lease that ended, an older checkpoint) is dropped there: what it said is gone.
"""

from __future__ import annotations

from clawrl.ledger.database import Database
from clawrl.ledger.forgotten import ASKED
from clawrl.ledger.states import HELD, IllegalMove, Place, check_move, dropped
from clawrl.ledger.views import Transition
from clawrl.messages import DropReason, TurnId, TurnState


def move(db: Database, turn_id: TurnId, place: Place, detail: str = "") -> None:
    """Moves a recorded turn, or refuses with `IllegalMove`."""
    row = db.one("SELECT state, reason, forgotten FROM turns WHERE turn_id = ?", turn_id)
    if row is None:
        raise IllegalMove(f"turn {turn_id} is not recorded")
    source = TurnState(row["state"])
    check_move(turn_id, source, place.state, None if row["reason"] is None else DropReason(row["reason"]))
    back = source in HELD and place.state is TurnState.QUEUED
    since = (_ready_since(db, turn_id) if back else None) or db.clock()
    db.execute(
        "UPDATE turns SET state = ?, reason = ?, step = ?, lease_id = ?, state_at = ? WHERE turn_id = ?",
        place.state,
        place.reason,
        place.step,
        place.lease_id,
        since,
        turn_id,
    )
    log(db, turn_id, source, place, detail)
    if row["forgotten"] and place.state is TurnState.QUEUED:
        # What was trained may have been too old to keep as well.
        move(db, turn_id, dropped(DropReason.FORGOTTEN), ASKED if source is TurnState.LEASED else "")


def _ready_since(db: Database, turn_id: TurnId) -> float | None:
    """When the turn was queued as it is; one that was judged again since an earlier time is another."""
    found: float | None = db.scalar(
        "SELECT max(at) FROM transitions WHERE turn_id = ? AND from_state = ? AND to_state = ?",
        turn_id,
        TurnState.JUDGED,
        TurnState.QUEUED,
    )
    return found


def log(db: Database, turn_id: TurnId, source: TurnState | None, place: Place, detail: str = "") -> None:
    db.execute(
        "INSERT INTO transitions (turn_id, from_state, to_state, detail, at) VALUES (?, ?, ?, ?, ?)",
        turn_id,
        source,
        place.state,
        " ".join(part for part in (place.detail, detail) if part),
        db.clock(),
    )


def state_of(db: Database, turn_id: TurnId) -> TurnState | None:
    found = db.scalar("SELECT state FROM turns WHERE turn_id = ?", turn_id)
    return None if found is None else TurnState(found)


def transitions(db: Database, turn_id: TurnId) -> list[Transition]:
    return [
        Transition(
            turn_id=turn_id,
            source=None if row["from_state"] is None else TurnState(row["from_state"]),
            target=TurnState(row["to_state"]),
            detail=row["detail"],
            at=row["at"],
        )
        for row in db.rows("SELECT * FROM transitions WHERE turn_id = ? ORDER BY id", turn_id)
    ]
