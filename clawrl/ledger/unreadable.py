"""A turn that turns out to be unreadable where it is needed: out of everybody's way, with a reason.

`clawrl.ledger.lost_keys` sees to such turns when a ledger is opened; this is for what it cannot know, one altered by a
disk, or by a hand, or whose key a disk spoiled. One whose key is gone counts as forgotten, the others are ``malformed``
and stay as they are.
"""

from __future__ import annotations

import logging

from clawrl.ledger.blanks import strip
from clawrl.ledger.codec import Altered, KeyGone
from clawrl.ledger.database import Database
from clawrl.ledger.moves import move, state_of
from clawrl.ledger.states import TERMINAL, dropped
from clawrl.messages import DropReason, TurnId, TurnState

log = logging.getLogger(__name__)


def put_away(db: Database, turn_id: TurnId, why: KeyGone) -> None:
    """In a transaction; a turn that is in a step stays there."""
    altered = isinstance(why, Altered)
    log.warning("turn %s cannot be read: %s", turn_id, why)
    if not altered:
        db.execute("UPDATE turns SET forgotten = 1 WHERE turn_id = ?", turn_id)
    state = state_of(db, turn_id)
    held = state is TurnState.APPLIED
    if state is not None and not held and state not in TERMINAL:
        move(db, turn_id, dropped(DropReason.MALFORMED if altered else DropReason.FORGOTTEN), why.said)
    if not altered:
        strip(db, turn_id, keep_judgement=held or state is TurnState.TRAINED)
