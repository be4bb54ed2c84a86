"""One SQLite connection: how it is opened, how a commit is bounded.

WAL with ``synchronous=NORMAL``: what is committed survives ``kill -9`` of the process (a power cut may
take the last commits with it, but nothing from before a `Database.sync`). Used by one thread at a time, not
always the same one.

`Database.transaction` nests: the outermost commits, inner ones are savepoints, so that one refused
operation inside a batch leaves no half of itself behind and does not take the batch down.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clawrl.durable import sync_path
from clawrl.ledger.codec import Codec
from clawrl.ledger.schema import ADDED, EARLIER, SCHEMA_VERSION, TABLES, UPGRADES


class LedgerFileError(RuntimeError):
    """The file is not a ledger that this release can use, or its transaction was lost."""


class Database:
    """The connection, the clock and the codec that every part of the ledger shares."""

    def __init__(self, path: Path, codec: Codec, clock: Callable[[], float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Conversations lie in here: readable by this user only. The -wal and -shm files inherit the mode.
        # Only where there is none: to close a handle of it would take the locks of others in this process away.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self.path = path
        self.codec = codec
        self.clock = clock
        self.keeps_untrainable = True
        # What has to be written with whatever is.
        self.before_commit: Callable[[], None] = lambda: None
        self._depth = 0
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        self._connection.row_factory = sqlite3.Row
        # secure_delete: what is deleted is overwritten, or it would lie in free pages until they are used again.
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "journal_size_limit=67108864",
            "temp_store=MEMORY",
            "secure_delete=ON",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self._create_or_check()

    def _create_or_check(self) -> None:
        with self.transaction():
            found = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if found == 0:
                self._run(TABLES)
            elif found != SCHEMA_VERSION and found not in UPGRADES:
                raise LedgerFileError(
                    f"{self.path} has ledger format {found}, this release reads {SCHEMA_VERSION}: move the file away"
                )
            else:
                for earlier in range(found, SCHEMA_VERSION):
                    self._run(UPGRADES[earlier])
            if found != SCHEMA_VERSION:
                self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self._run(ADDED)
            for table, script in EARLIER.items():
                if self.scalar("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", table):
                    self._run(script)

    def _run(self, script: str) -> None:
        for statement in script.split(";"):
            if statement.strip():
                self._connection.execute(statement)

    @property
    def in_transaction(self) -> bool:
        return self._depth > 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of what happens inside, or nothing of it."""
        depth = self._depth
        if depth and not self._connection.in_transaction:
            # SQLite itself rolled back (a full disk): what came before in this batch is gone.
            raise LedgerFileError("the surrounding transaction was rolled back")
        self._connection.execute("BEGIN IMMEDIATE" if depth == 0 else f"SAVEPOINT level{depth}")
        self._depth = depth + 1
        try:
            yield
            if depth == 0:
                if not self._connection.in_transaction:
                    raise LedgerFileError("the transaction was rolled back")
                self.before_commit()
            self._connection.execute("COMMIT" if depth == 0 else f"RELEASE level{depth}")
        except BaseException:
            if self._connection.in_transaction:
                if depth:
                    self._connection.execute(f"ROLLBACK TO level{depth}")
                    self._connection.execute(f"RELEASE level{depth}")
                else:
                    self._connection.execute("ROLLBACK")
            raise
        finally:
            self._depth = depth

    def execute(self, sql: str, *values: Any) -> int:
        """Runs one statement; returns how many rows it changed."""
        return self._connection.execute(sql, values).rowcount

    def one(self, sql: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
        return row

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return self._connection.execute(sql, values).fetchall()

    def scalar(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, ``None`` without one."""
        row = self.one(sql, *values)
        return None if row is None else row[0]

    def function(self, name: str, function: Callable[..., Any], arguments: int) -> None:
        """Lets SQL call a function of ours."""
        self._connection.create_function(name, arguments, function, deterministic=False)

    def empty_log(self) -> bool:
        """All that was committed goes to the file, and nothing stays in the write-ahead log; outside a transaction.

        False while somebody else reads from it.
        """
        busy: int = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def trace(self, listener: Callable[[str], None] | None) -> None:
        """Reports every statement that runs, for whoever wants to know what a call costs."""
        self._connection.set_trace_callback(listener)

    def sync(self) -> None:
        """What was committed before this call survives a power cut, too.

        What is not in the log any more SQLite has synced itself. The file itself must not be touched: whoever closes a
        handle of it, and be it another one, takes the locks of this process away (POSIX), and the next reader that
        leaves believes to be the last and deletes the log that is still being written.
        """
        sync_path(self.path.with_name(f"{self.path.name}-wal"))
        sync_path(self.path.parent)

    def close(self) -> None:
        self._connection.close()
