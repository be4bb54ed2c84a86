"""How far behind the next step a turn's oldest token is, in batches that changed the weights.

A version's weights are those of its step, and of every later step until the next one that changed something: a batch
from which nothing could be learned does not make what was sampled before it any older. What is not known to have
changed nothing counts. After a rollback the trainer goes on from the weights of an earlier version; that version is
then as new as the step at which it did so.
"""

from __future__ import annotations

from clawrl.ledger.codec import unpack_stats
from clawrl.ledger.database import Database
from clawrl.ledger.moves import move
from clawrl.ledger.states import dropped
from clawrl.messages import DropReason

REWOUND_AT = "rewound_at_step"
"""In the stats of a version that was rolled back to: the trainer's step when it took these weights."""


def behind(db: Database, version: int, step: int) -> int:
    """How many batches changed the weights between those of ``version`` and those that ``step`` starts from."""
    # A number that was never published, or is no longer known, counts as the one before it, down to the start.
    made = db.one("SELECT step, stats FROM versions WHERE version <= ? ORDER BY version DESC LIMIT 1", version)
    made_by = 0 if made is None else int(unpack_stats(made["stats"]).get(REWOUND_AT, made["step"]))
    # Ledgers of earlier releases may hold figures that are not finite, which SQLite does not take for JSON.
    without_effect = db.scalar(
        "SELECT count(*) FROM steps WHERE step > ? AND step < ? AND state != 'undone'"
        " AND CASE WHEN json_valid(stats) THEN json_extract(stats, '$.changed') = 0 ELSE 0 END",
        made_by,
        step,
    )
    # Negative after a restart from a checkpoint older than what was being served: those steps are taken again.
    return max(step - 1 - made_by - int(without_effect), 0)


def drop_stale(db: Database, step: int, most_behind: int) -> int:
    """Drops the queued turns that are too old for ``step``; returns how many."""
    count, after = 0, -1
    # From one version in the queue to the next: there are few, however many turns wait.
    following = "SELECT min(oldest_version) FROM turns WHERE state = 'queued' AND oldest_version > ?"
    while (version := db.scalar(following, after)) is not None:
        after = version
        late = behind(db, version, step)
        if late <= most_behind:
            continue
        for row in db.rows("SELECT turn_id FROM turns WHERE state = 'queued' AND oldest_version = ?", version):
            move(db, row["turn_id"], dropped(DropReason.STALE), f"version {version} is {late} batches behind")
            count += 1
    return count


def behind_of_lease(db: Database, lease_id: str) -> list[int]:
    """How far behind its step each turn of a lease is."""
    return [
        behind(db, row["oldest_version"], row["step"])
        for row in db.rows("SELECT oldest_version, step FROM turns WHERE state = 'leased' AND lease_id = ?", lease_id)
    ]
