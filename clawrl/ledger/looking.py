"""What an operator looks at: turns by filter, sessions, versions, steps. Reads only, newest first, in pages.

The reader and the writer of the ledger share one thread, so that every call here does a bounded amount of work: it
looks at a few thousand rows at most, in the order of an index, and says where to go on. A page may therefore hold fewer
rows than were asked for, or none, and not be the last. Nothing here reads a text.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clawrl.ledger.counts import ROW_SQL, step_row, turn_row
from clawrl.ledger.database import Database
from clawrl.ledger.versions import read_version
from clawrl.ledger.views import StepRow, TurnRow
from clawrl.messages import DropReason, PolicyVersion, TurnId, TurnState

SCAN = 2_000
SCAN_PER_SESSION_ROW = 4
MOST_ROWS = 500
MOST_COUNTED = 1_000
MOST_OWNERS = 100
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
    """One conversation of one owner. ``implicit``: the client named no session. Ids and times are of its turns.

    ``by_state`` counts its newest `MOST_COUNTED` turns; ``more`` says that there are others.
    """

    owner: str
    session: str
    implicit: bool
    by_state: Mapping[TurnState, int]
    more: bool
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
    clauses = _clauses(wanted)
    fits, values = " AND ".join(clauses) or "1", list(clauses.values())
    parts, asked = [], []
    for place, told in _places(wanted):
        parts.append(f"SELECT seq, ({fits}) AS fits FROM turns {place} AND seq < ?")
        asked += [*values, *told, _TOP if before is None else before]
    # Several are merged as they come, each out of its own index; one turn may be in more than one of them.
    seen = db.rows(f"{' UNION '.join(parts)} ORDER BY seq DESC LIMIT ?", *asked, SCAN)
    fitting = [row["seq"] for row in seen if row["fits"]][:limit]
    these = ", ".join("?" * len(fitting))
    rows = db.rows(f"{ROW_SQL} WHERE t.seq IN ({these}) ORDER BY t.seq DESC", *fitting) if fitting else ()
    return Page(rows=tuple(turn_row(db, row) for row in rows), before=_go_on(seen, fitting, limit, SCAN))


def recent_sessions(db: Database, before: int | None, limit: int) -> Page[SessionRow]:
    """Those whose newest turn has a smaller ``seq`` than ``before``, by their newest turn."""
    limit, scan = max(1, min(limit, MOST_ROWS)), SCAN // SCAN_PER_SESSION_ROW
    seen = db.rows(
        "SELECT seq, owner, session FROM turns WHERE seq < ? ORDER BY seq DESC LIMIT ?",
        _TOP if before is None else before,
        scan,
    )
    met: set[tuple[str, str]] = set()
    rows: list[SessionRow] = []
    counted = 0
    for row in seen:
        key = (row["owner"], row["session"])
        if key in met:
            continue
        if len(rows) == limit or counted >= SCAN:
            return Page(rows=tuple(rows), before=rows[-1].last_seq)
        met.add(key)
        # One that has a newer turn stands on an earlier page.
        if _newest_of(db, *key) == row["seq"]:
            rows.append(_session(db, *key))
            counted += rows[-1].turns
    return Page(rows=tuple(rows), before=_go_on(seen, [row.last_seq for row in rows], limit, scan))


def sessions_named(db: Database, session: str) -> list[SessionRow]:
    """One for each owner of a session of this name, up to `MOST_OWNERS`: two people's may be called alike."""
    found: list[SessionRow] = []
    owner = ""
    while len(found) < MOST_OWNERS:
        # The next owner, rather than all: theirs may be a thousand turns each.
        owner = db.scalar(
            "SELECT owner FROM turns INDEXED BY turns_in_session WHERE session = ? AND owner > ?"
            " ORDER BY owner LIMIT 1",
            session,
            owner,
        )
        if owner is None:
            break
        found.append(_session(db, owner, session))
    return found


def _newest_of(db: Database, owner: str, session: str) -> int:
    found: int = db.scalar(
        "SELECT seq FROM turns INDEXED BY turns_in_session WHERE session = ? AND owner = ? ORDER BY seq DESC LIMIT 1",
        session,
        owner,
    )
    return found


def _session(db: Database, owner: str, session: str) -> SessionRow:
    """Of a session that there is."""
    newest = db.rows(
        "SELECT seq, turn_id, state, implicit, finished_at FROM turns INDEXED BY turns_in_session"
        " WHERE session = ? AND owner = ? ORDER BY seq DESC LIMIT ?",
        session,
        owner,
        MOST_COUNTED + 1,
    )
    oldest = db.one(
        "SELECT started_at FROM turns INDEXED BY turns_in_session WHERE session = ? AND owner = ? ORDER BY seq LIMIT 1",
        session,
        owner,
    )
    assert oldest is not None
    counted = newest[:MOST_COUNTED]
    return SessionRow(
        owner=owner,
        session=session,
        implicit=bool(newest[0]["implicit"]),
        by_state=Counter(TurnState(row["state"]) for row in counted),
        more=len(newest) > len(counted),
        first_at=oldest["started_at"],
        last_at=newest[0]["finished_at"],
        last_seq=newest[0]["seq"],
        last_turn=newest[0]["turn_id"],
    )


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


def _places(wanted: TurnFilter) -> list[tuple[str, list[Any]]]:
    """Where the fewest rows are found in order of ``seq``: indices, each with its clause and that clause's values."""
    if wanted.step is not None:
        return [("INDEXED BY turns_held WHERE step = ?", [wanted.step])]
    if wanted.session is not None and wanted.owner is not None:
        return [("INDEXED BY turns_in_session WHERE session = ? AND owner = ?", [wanted.session, wanted.owner])]
    if wanted.session is not None:
        return [("INDEXED BY turns_named WHERE session = ?", [wanted.session])]
    if wanted.reason is not None:
        return [("INDEXED BY turns_by_state WHERE state = 'dropped' AND reason = ?", [wanted.reason])]
    if wanted.state is not None and wanted.state is not TurnState.DROPPED:
        return [("INDEXED BY turns_by_state WHERE state = ? AND reason IS NULL", [wanted.state])]
    if wanted.version is not None:
        # It began a turn, or ended one, or was one of several in between; of the last there are few.
        return [
            ("INDEXED BY turns_from_version WHERE oldest_version = ?", [wanted.version]),
            (
                "INDEXED BY turns_to_version WHERE newest_version > oldest_version AND newest_version = ?",
                [wanted.version],
            ),
            ("INDEXED BY turns_over_versions WHERE newest_version > oldest_version + 1", []),
        ]
    return [("WHERE 1", [])]


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
