"""Policy versions: numbers that only grow, even when the weights behind them go back in time.

A version is good once somebody who looked at how its turns went says so. Rolling back publishes the
weights of an earlier version under a new number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clawrl.ledger.codec import pack_stats, unpack_stats
from clawrl.ledger.counts import counter
from clawrl.ledger.database import Database
from clawrl.ledger.runs import current_run
from clawrl.ledger.staleness import REWOUND_AT
from clawrl.messages import PolicyVersion

KEPT_GOOD = 2
"""How many good versions are kept however old they are. Turns that end late may show the newest one to be none."""
KEPT_GOOD_SQL = f"SELECT version FROM versions WHERE good = 1 ORDER BY version DESC LIMIT {KEPT_GOOD}"


class VersionRefused(ValueError):
    """A version that is not newer than the current one, or one that nobody knows."""


def current_version(db: Database) -> PolicyVersion | None:
    row = db.one("SELECT * FROM versions ORDER BY version DESC LIMIT 1")
    return None if row is None else read_version(row)


def find_version(db: Database, version: int) -> PolicyVersion | None:
    row = db.one("SELECT * FROM versions WHERE version = ?", version)
    return None if row is None else read_version(row)


def next_version(db: Database) -> int:
    """Reserves a number. It is never handed out again: a publish that died half-way may have shown it somewhere."""
    current = current_version(db)
    number = max(int(counter(db, "reserved_version")), 0 if current is None else current.version) + 1
    db.execute("INSERT OR REPLACE INTO counters (name, value) VALUES ('reserved_version', ?)", number)
    return number


def commit_version(db: Database, version: PolicyVersion) -> bool:
    """True if new, false if this very version is the current one already (a repeated call)."""
    current = current_version(db)
    if current is not None and version.version <= current.version:
        same = (current.version, current.step, current.digest, current.snapshot)
        if (version.version, version.step, version.digest, version.snapshot) == same:
            return False
        raise VersionRefused(f"version {version.version} is not newer than the current {current.version}")
    db.execute(
        "INSERT INTO versions (version, step, snapshot, digest, published_at, stats) VALUES (?, ?, ?, ?, ?, ?)",
        version.version,
        version.step,
        version.snapshot,
        version.digest,
        version.published_at,
        pack_stats(version.stats),
    )
    return True


def annotate_version(db: Database, version: int, stats: Mapping[str, Any]) -> None:
    """Replaces what is known about a version: how its commit went is learned only after the decision."""
    db.execute("UPDATE versions SET stats = ? WHERE version = ?", pack_stats(stats), version)


def mark_good(db: Database, version: int) -> None:
    """``version`` is the newest good one: what was thought of newer ones does not stand."""
    if not db.execute("UPDATE versions SET good = 1 WHERE version = ?", version):
        raise VersionRefused(f"version {version} is not known, only a published version can be good")
    db.execute("UPDATE versions SET good = 0 WHERE version > ?", version)


def good_versions(db: Database) -> list[PolicyVersion]:
    """The newest `KEPT_GOOD` good ones, the newest first."""
    rows = db.rows(f"SELECT * FROM versions WHERE version IN ({KEPT_GOOD_SQL}) ORDER BY version DESC")
    return [read_version(row) for row in rows]


def roll_back(db: Database, to: int) -> PolicyVersion:
    """A new, good, current version with the weights of version ``to``; asked again, the same one.

    It is another one if the trainer, which had gone back to these weights, has taken steps since.
    """
    wanted, current = find_version(db, to), current_version(db)
    if wanted is None or current is None:
        good = good_versions(db)
        remedy = f"the newest good one is {good[0].version}" if good else "none is marked good"
        raise VersionRefused(f"cannot roll back to version {to}: it is not known; {remedy}")
    same = (current.snapshot, current.digest) == (wanted.snapshot, wanted.digest)
    if current.version != to and same and not _moved_on(db, current):
        return current
    stats = {"rolled_back_to": to, "rolled_back_from": current.version}
    again = replace(wanted, version=next_version(db), published_at=db.clock(), stats=stats)
    commit_version(db, again)
    mark_good(db, again.version)
    db.execute("INSERT OR REPLACE INTO counters (name, value) VALUES ('newest_rollback', ?)", again.version)
    return again


def _moved_on(db: Database, version: PolicyVersion) -> bool:
    """Whether the trainer took these weights and has taken a step from them."""
    run, rewound_at = current_run(db), version.stats.get(REWOUND_AT)
    return run is not None and rewound_at is not None and run["taken_step"] > rewound_at


def newest_rollback(db: Database) -> PolicyVersion | None:
    """Asked at every lease: found by its number, not by looking through the history."""
    number = int(counter(db, "newest_rollback"))
    return find_version(db, number) if number else None


def versions(db: Database, limit: int) -> list[PolicyVersion]:
    """The newest first."""
    return [read_version(row) for row in db.rows("SELECT * FROM versions ORDER BY version DESC LIMIT ?", limit)]


def read_version(row: sqlite3.Row) -> PolicyVersion:
    return PolicyVersion(
        version=row["version"],
        step=row["step"],
        snapshot=row["snapshot"],
        digest=row["digest"],
        published_at=row["published_at"],
        stats=unpack_stats(row["stats"]),
    )
