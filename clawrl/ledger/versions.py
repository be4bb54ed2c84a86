"""Policy versions: numbers that only grow, even when the weights behind them go back in time."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from clawrl.ledger.codec import pack_stats, unpack_stats
from clawrl.ledger.counts import counter
from clawrl.ledger.database import Database
from clawrl.messages import PolicyVersion


class VersionRefused(ValueError):
    """A version that is not newer than the current one."""


def current_version(db: Database) -> PolicyVersion | None:
    row = db.one("SELECT * FROM versions ORDER BY version DESC LIMIT 1")
    return None if row is None else _version(row)


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


def versions(db: Database, limit: int) -> list[PolicyVersion]:
    """The newest first."""
    return [_version(row) for row in db.rows("SELECT * FROM versions ORDER BY version DESC LIMIT ?", limit)]


def _version(row: sqlite3.Row) -> PolicyVersion:
    return PolicyVersion(
        version=row["version"],
        step=row["step"],
        snapshot=row["snapshot"],
        digest=row["digest"],
        published_at=row["published_at"],
        stats=unpack_stats(row["stats"]),
    )
