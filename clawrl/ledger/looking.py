"""What an operator looks at: turns by filter, sessions, versions, steps. Reads only, newest first, in pages.

The reader and the writer of the ledger share one thread, so that every call here does a bounded amount of work: it
looks at `SCAN` rows at most, found through an index, and says where to go on. A page may therefore hold fewer rows than
were asked for, or none, and not be the last. Nothing here reads a text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clawrl.ledger.counts import ROW_SQL, step_row, turn_row
from clawrl.ledger.database import Database
from clawrl.ledger.versions import read_version
from clawrl.ledger.views import StepRow, TurnRow
from clawrl.messages import DropReason, PolicyVersion, TurnId, TurnState

SCAN = 2_000
# A session is looked at as a whole.
SCAN_PER_SESSION_ROW = 4
MOST_ROWS = 500
_TOP = 2**62
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilter:
    """What is not ``None`` must hold. ``version`` is one that sampled any of the answer's tokens."""

    state: TurnState | None = None
    reason: DropReason | None = None
    session: str | None = None
    owner: str | None = None
    version: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """``before`` goes on where this page ends; ``None``: nothing is left."""

    rows: tuple[Row, ...]
    before: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One conversation of one owner. ``implicit``: the client named no session. Ids and times are of its turns."""

    owner: str
    session: str
    implicit: bool
    by_state: Mapping[TurnState, int]
    first_at: float
    last_at: float
    last_seq: int
    last_turn: TurnId

    @property
    def turns(self) -> int:
        return sum(self.by_state.values())

    @property
    def active(self) -> bool:
        """Its newest answers wait for what comes next."""
        return self.by_state.get(TurnState.AWAITING_NEXT, 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """``good``: the guard, or whoever rolled back to it, found that it serves well."""

    version: PolicyVersion
    good: bool


def find_turns(db: Database, wanted: TurnFilter, before: int | None, limit: int) -> Page[TurnRow]:
    """Turns with a smaller ``seq`` than ``before``."""
    limit = min(limit, MOST_ROWS)
    index, driver, values = _driver(wanted)
    rest = _clauses(wanted)
    seen = db.rows(
        f"SELECT seq, ({' AND '.join(rest) or '1'}) AS fits FROM turns {index}"
        f" WHERE {driver} AND seq < ? ORDER BY seq DESC LIMIT ?",
        *rest.values(),
        *values,
        _TOP if before is None else before,
        SCAN,
    )
    fitting = [row["seq"] for row in seen if row["fits"]][:limit]
    rows = db.rows(
        f"{ROW_SQL} WHERE t.seq IN ({', '.join('?' * len(fitting))}) ORDER BY t.seq DESC LIMIT ?", *fitting, limit
    )
    return Page(rows=tuple(turn_row(db, row) for row in rows), before=_go_on(seen, fitting, limit, SCAN))


def recent_sessions(db: Database, before: int | None, limit: int) -> Page[SessionRow]:
    """Those whose newest turn has a smaller ``seq`` than ``before``, by their newest turn."""
    limit, scan = min(limit, MOST_ROWS), SCAN // SCAN_PER_SESSION_ROW
    seen = db.rows(
        "SELECT seq, owner, session FROM turns WHERE seq < ? ORDER BY seq DESC LIMIT ?",
        _TOP if before is None else before,
        scan,
    )
    found: dict[tuple[str, str], SessionRow | None] = {}
    listed: list[int] = []
    for row in seen:
        key = (row["owner"], row["session"])
        if key in found:
            continue
        if len(listed) == limit:
            break
        # One that has a newer turn stands on an earlier page.
        whole = find_session(db, *key)
        found[key] = whole if whole is not None and whole.last_seq == row["seq"] else None
        if found[key] is not None:
            listed.append(row["seq"])
    rows = tuple(row for row in found.values() if row is not None)
    return Page(rows=rows, before=_go_on(seen, listed, limit, scan))


def find_session(db: Database, owner: str, session: str) -> SessionRow | None:
    states = db.rows(
        "SELECT state, count(*) AS n, min(seq) AS first, max(seq) AS last FROM turns INDEXED BY turns_of_session"
        " WHERE session = ? AND owner = ? GROUP BY state",
        session,
        owner,
    )
    if not states:
        return None
    newest = db.one("SELECT * FROM turns WHERE seq = ?", max(row["last"] for row in states))
    oldest = db.one("SELECT started_at FROM turns WHERE seq = ?", min(row["first"] for row in states))
    assert newest is not None and oldest is not None
    return SessionRow(
        owner=owner,
        session=session,
        implicit=bool(newest["implicit"]),
        by_state={TurnState(row["state"]): row["n"] for row in states},
        first_at=oldest["started_at"],
        last_at=newest["finished_at"],
        last_seq=newest["seq"],
        last_turn=newest["turn_id"],
    )


def owners_of(db: Database, session: str) -> list[str]:
    """Who has a session of this name: two people's may be called alike."""
    rows = db.rows("SELECT DISTINCT owner FROM turns INDEXED BY turns_of_session WHERE session = ?", session)
    return sorted(row["owner"] for row in rows)


def version_rows(db: Database, before: int | None, limit: int) -> list[VersionRow]:
    rows = db.rows(
        "SELECT * FROM versions WHERE version < ? ORDER BY version DESC LIMIT ?",
        _TOP if before is None else before,
        limit,
    )
    return [VersionRow(version=read_version(row), good=bool(row["good"])) for row in rows]


def step_page(db: Database, before: int | None, limit: int) -> list[StepRow]:
    """The newest steps with a smaller ``seq`` than ``before``, newest first; undone ones too."""
    rows = db.rows(
        "SELECT * FROM steps WHERE id < ? ORDER BY id DESC LIMIT ?", _TOP if before is None else before, limit
    )
    return [step_row(row) for row in rows]


def _driver(wanted: TurnFilter) -> tuple[str, str, list[Any]]:
    """The index that finds the fewest rows in order of ``seq``, its clause, and that clause's values."""
    if wanted.step is not None:
        return "INDEXED BY turns_held", "step = ?", [wanted.step]
    if wanted.session is not None:
        return "INDEXED BY turns_of_session", "session = ?", [wanted.session]
    if wanted.reason is not None:
        return "INDEXED BY turns_by_state", "state = 'dropped' AND reason = ?", [wanted.reason]
    if wanted.state is not None and wanted.state is not TurnState.DROPPED:
        return "INDEXED BY turns_by_state", "state = ? AND reason IS NULL", [wanted.state]
    if wanted.version is not None:
        return (
            "INDEXED BY turns_of_version",
            "newest_version >= ? AND oldest_version <= ?",
            [wanted.version, wanted.version],
        )
    return "", "1", []


def _clauses(wanted: TurnFilter) -> dict[str, Any]:
    clauses = {
        "state = ?": wanted.state,
        "reason IS ?": wanted.reason,
        "session = ?": wanted.session,
        "owner = ?": wanted.owner,
        "step IS ?": wanted.step,
        "oldest_version IS NOT NULL AND oldest_version <= ?": wanted.version,
        "newest_version IS NOT NULL AND newest_version >= ?": wanted.version,
    }
    return {clause: value for clause, value in clauses.items() if value is not None}


def _go_on(seen: list[sqlite3.Row], chosen: list[int], limit: int, scan: int) -> int | None:
    if len(chosen) == limit:
        return chosen[-1]
    last: int | None = seen[-1]["seq"] if len(seen) == scan else None
    return last
