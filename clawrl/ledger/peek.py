"""What a ledger's file says of itself to whoever must not change it: to open a `Ledger` brings the file up to date."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from clawrl.ledger.database import LedgerFileError
from clawrl.ledger.schema import SCHEMA_VERSION, UPGRADES


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """``keyring`` names the keys that it was written with, if it was with any; ``sealed``: what is private in it is."""

    format: int
    keyring: str | None
    sealed: bool

    @property
    def outdated(self) -> bool:
        """Opening it rewrites it."""
        return self.format in UPGRADES or (self.format == SCHEMA_VERSION and self.keyring is None)


def peek(path: Path) -> FileFacts:
    """Of a file that no process has open. Raises `LedgerFileError`."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=10.0)) as file:
            (number,) = file.execute("PRAGMA user_version").fetchone()
            if not number:
                raise LedgerFileError(f"{path} is no ledger")
            known = file.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'protection'").fetchone()
            row = known and file.execute("SELECT keyring, sealed FROM protection").fetchone()
    except sqlite3.Error as error:
        raise LedgerFileError(f"{path} cannot be read: {error}") from error
    keyring, sealed = row or (None, False)
    return FileFacts(format=number, keyring=keyring, sealed=bool(sealed))
