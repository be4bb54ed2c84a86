"""What a restored checkpoint proves. The checkpoint is the truth.

Turns of confirmed steps up to the restored one are trained, turns of later steps (even trained ones,
when an older checkpoint was restored) go back to the queue. An unconfirmed lease cannot have been
stepped, since the confirmation is on disk before the optimizer moves: its turns go back too.
"""

from __future__ import annotations

from clawrl.ledger import leases
from clawrl.ledger.counts import counter
from clawrl.ledger.database import Database
from clawrl.ledger.moves import move
from clawrl.ledger.runs import register, settle
from clawrl.ledger.states import QUEUED
from clawrl.ledger.views import Restored


def restored(db: Database, run_id: str, step: int) -> Restored:
    register(db, run_id, step)
    requeued = 0
    for lent in db.rows("SELECT * FROM leases WHERE status IN ('open', 'confirmed') ORDER BY step"):
        if lent["status"] == "confirmed" and lent["step"] <= step:
            leases.apply(db, lent, {})
        else:
            requeued += leases.give_back(db, lent["lease_id"], f"run {run_id} restored step {step}")
    trained = settle(db, step)
    for row in db.rows("SELECT turn_id FROM turns WHERE step > ? ORDER BY step, seq", step):
        move(db, row["turn_id"], QUEUED, f"run {run_id} restored step {step}")
        requeued += 1
    db.execute("UPDATE steps SET state = 'undone' WHERE step > ?", step)
    return Restored(trained=trained, requeued=requeued, out_of_reach=step < counter(db, "pruned_step"))
