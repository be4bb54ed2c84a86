"""What keeps the ledger bounded: waiting ends, finished turns become counts.

Both calls do a bounded amount of work, so that neither holds up the turns being served; what is left
over waits for the next call.

Of a trained turn whose text is deleted it is kept on in which step it was, see `clawrl.ledger.learned`.
"""

from __future__ import annotations

from clawrl.ledger import hint_uses, learned, permission, remembering, vitals
from clawrl.ledger.blanks import strip
from clawrl.ledger.config import LedgerConfig
from clawrl.ledger.counts import counter
from clawrl.ledger.database import Database
from clawrl.ledger.leases import expire
from clawrl.ledger.moves import move
from clawrl.ledger.runs import current_run
from clawrl.ledger.states import dropped
from clawrl.ledger.unteaching import unteach
from clawrl.ledger.versions import KEPT_GOOD_SQL
from clawrl.ledger.views import Swept
from clawrl.messages import DropReason, TurnId

_OF_A_TURN = (
    "turns",
    "arrivals",
    "payloads",
    "evidence",
    "judgements",
    "targets",
    "hint_uses",
    "feedback",
    "refusals",
    "transitions",
)
BATCH = 5_000
KEEP_HISTORY = 10_000
"""How many versions, steps, leases and runs are kept: a page of history each, no more."""

_SAVED_SQL = "SELECT id FROM runs WHERE checkpointed_step > restored_step ORDER BY id DESC LIMIT 100"


def sweep(db: Database, config: LedgerConfig, now: float) -> Swept:
    """Ends what nobody continues: turns without a follow-up, requests without a turn, overdue leases."""
    since = now - config.idle_timeout_s
    idle = db.rows(
        "SELECT turn_id FROM turns WHERE state = 'awaiting_next' AND state_at < ? ORDER BY state_at LIMIT ?",
        since,
        BATCH,
    )
    for row in idle:
        move(db, row["turn_id"], dropped(DropReason.NO_EVIDENCE))
    # A turn that is recorded after all brings its arrival along again.
    forgotten = db.rows(
        "DELETE FROM arrivals WHERE turn_id IN"
        " (SELECT turn_id FROM arrivals WHERE recorded = 0 AND noted_at < ? ORDER BY noted_at LIMIT ?)"
        " RETURNING owner, session, implicit",
        since,
        BATCH,
    )
    for row in forgotten:
        if row["implicit"]:
            permission.session_is_gone(db, row["owner"], row["session"])
    return Swept(no_evidence=len(idle), arrivals=len(forgotten), leases=expire(db, now))


def prune(db: Database, config: LedgerConfig) -> int:
    """Counts and deletes finished turns beyond ``keep_finished_turns``; returns how many.

    A trained turn stays as long as a trainer could still restore a checkpoint without it:
    ``keep_trained_steps`` steps behind the last checkpoint.
    """
    safe_step = _safe_step(db, config)
    _prune_history(db)
    _prune_targets(db, safe_step)
    vitals.prune_orphans(db)
    permission.prune(db, BATCH)
    remembering.prune(db)
    cutoff = db.scalar(
        "SELECT seq FROM turns WHERE state IN ('trained', 'dropped') ORDER BY seq DESC LIMIT 1 OFFSET ?",
        config.keep_finished_turns,
    )
    if cutoff is None:
        return 0
    finished = db.rows(
        "SELECT turn_id FROM turns WHERE state IN ('trained', 'dropped') AND seq <= ?"
        " AND (state = 'dropped' OR step <= ?) ORDER BY seq LIMIT ?",
        cutoff,
        safe_step,
        BATCH,
    )
    for row in finished:
        retire(db, row["turn_id"])
    return len(finished)


def expire_text(db: Database, config: LedgerConfig, before: float) -> int:
    """What was said in turns that were finished before then is deleted; at most a batch, returns how many.

    A trained turn that a trainer could still be sent back to keeps an empty row, and is dropped if that happens. What
    a teacher was told as a hint is as old as the hint.
    """
    safe_step = _safe_step(db, config)
    db.execute("DELETE FROM hints WHERE at < ?", before)
    untaught = unteach(db, hint_uses.before(db, before, BATCH))
    old = db.rows(
        "SELECT turn_id, owner, state, step FROM turns WHERE state IN ('trained', 'dropped') AND state_at < ?"
        " AND NOT (withheld = 'all' AND state = 'trained' AND step > ?) ORDER BY seq LIMIT ?",
        before,
        safe_step,
        BATCH,
    )
    for row in old:
        if row["state"] == "dropped" or row["step"] <= safe_step:
            retire(db, row["turn_id"])
        else:
            learned.note(db, row["turn_id"], row["owner"])
            strip(db, row["turn_id"], keep_judgement=True)
    return len(old) + untaught.turns


def retire(db: Database, turn_id: TurnId) -> None:
    """Counts a finished turn and deletes it."""
    row = db.one("SELECT owner, session, implicit, state, reason, step FROM turns WHERE turn_id = ?", turn_id)
    assert row is not None
    db.execute(
        "INSERT INTO pruned (state, reason, n) VALUES (?, ?, 1) ON CONFLICT (state, reason) DO UPDATE SET n = n + 1",
        row["state"],
        row["reason"] or "",
    )
    learned.note(db, turn_id, row["owner"])
    for table in _OF_A_TURN:
        db.execute(f"DELETE FROM {table} WHERE turn_id = ?", turn_id)
    vitals.orphan(db, turn_id)
    if row["implicit"]:
        permission.session_is_gone(db, row["owner"], row["session"])
    if row["step"] is not None:
        db.execute(
            "INSERT OR REPLACE INTO counters (name, value) VALUES ('pruned_step', ?)",
            max(row["step"], int(counter(db, "pruned_step"))),
        )


def _safe_step(db: Database, config: LedgerConfig) -> int:
    """Turns of steps up to this one are never needed again."""
    run = current_run(db)
    return -1 if run is None else int(run["checkpointed_step"]) - config.keep_trained_steps


def _prune_targets(db: Database, safe_step: int) -> None:
    """Teacher targets outweigh all else about a turn and go as soon as nobody can train on it any more."""
    db.execute(
        "DELETE FROM targets WHERE turn_id IN (SELECT turn_id FROM targets JOIN turns USING (turn_id)"
        " WHERE state = 'dropped' OR (state = 'trained' AND step <= ?) LIMIT ?)",
        safe_step,
        BATCH,
    )


def _prune_history(db: Database) -> None:
    for table, key, ended in (
        # What a roll-back needs, however long ago that was: the newest good versions, and the model as it came.
        ("versions", "version", f" AND version != 0 AND version NOT IN ({KEPT_GOOD_SQL})"),
        ("steps", "id", ""),
        # A checkpoint is known by the run that wrote it, however often training was restarted since.
        ("runs", "id", f" AND id NOT IN ({_SAVED_SQL})"),
        ("leases", "id", " AND status IN ('applied', 'closed')"),
    ):
        db.execute(f"DELETE FROM {table} WHERE {key} <= (SELECT max({key}) FROM {table}) - ?{ended}", KEEP_HISTORY)
    learned.prune(db, KEEP_HISTORY)
