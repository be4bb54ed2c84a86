"""Who does not want to be learned from: the wish of a request holds for its session until another one says otherwise.

Nothing of such a request is learned from: not its answer, nor its words as evidence for the answer before.
"""

from __future__ import annotations

from clawrl.ledger.database import Database
from clawrl.messages import Arrival


def may_train(db: Database, arrival: Arrival, session: str) -> bool:
    """Notes the wish, if the request has one."""
    if arrival.train_wish is not None:
        if arrival.train_wish:
            db.execute("DELETE FROM opted_out WHERE owner = ? AND session = ?", arrival.owner, session)
        else:
            db.execute(
                "INSERT OR IGNORE INTO opted_out (owner, session, at) VALUES (?, ?, ?)",
                arrival.owner,
                session,
                db.clock(),
            )
            return False
    if not arrival.may_train:
        return False
    return db.scalar("SELECT 1 FROM opted_out WHERE owner = ? AND session = ?", arrival.owner, session) is None
