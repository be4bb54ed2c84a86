"""Turns to export, newest first: from a running server by its API, or from the ledger of a deployment that has stopped.

A sealed row has its texts and tokens under the keys of their users (`clawrl.privacy.sealed_rows`).

Who reads a ledger holds its state folder meanwhile, so that the deployment does not start under it, and changes nothing
in it: one of an earlier release's format, which has to be brought up to date first, is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from clawrl.client import ApiClient
from clawrl.inspection.asked import turn_filter
from clawrl.inspection.export_page import read_page
from clawrl.ledger import Ledger, LedgerFileError
from clawrl.ledger.looking import TurnFilter
from clawrl.ledger.peek import peek
from clawrl.on_disk import deployment_of, held, keys_of, ledger_file_of
from clawrl.privacy.keys import KeyGone, KeyStore, KeyStoreError
from clawrl.privacy.opening import open_ledger
from clawrl.turn_files.rows import Row, TurnFileError

_PAGE = 100


def rows_of_server(client: ApiClient, filters: Mapping[str, Any], *, sealed: bool = False) -> Iterator[Row]:
    """Page by page. Raises `ApiProblem`."""
    before: int | None = None
    while True:
        page = client.export_page(_PAGE, before, sealed, **filters)
        yield from page["rows"]
        before = page["before"]
        if before is None:
            return


def rows_of_stopped(file: Path, filters: Mapping[str, Any], *, sealed: bool = False) -> Generator[Row, None, None]:
    """Of the deployment that a file describes. Raises `TurnFileError`, also if it runs after all, and `ApiError`."""
    deployment = deployment_of(file, TurnFileError)
    ledger_file = ledger_file_of(deployment, TurnFileError)
    wanted = turn_filter({name: str(value) for name, value in filters.items()})
    with held(deployment, "export", TurnFileError):
        try:
            facts = peek(ledger_file)
            if facts.outdated:
                raise TurnFileError(
                    f"{ledger_file} was last written by an earlier release, and an export changes nothing in it: "
                    "start the deployment with this release, which brings it up to date, then export"
                )
            keys = keys_of(deployment, TurnFileError)
            # As it is, not as it is to be: whoever has turned sealing on or off since has it done by the deployment.
            privacy = deployment.privacy.model_copy(update={"encrypt": facts.sealed})
            with open_ledger(deployment.state_path, deployment.ledger, privacy, keys=keys) as ledger:
                yield from _pages(ledger, wanted, keys if sealed else None)
        except (LedgerFileError, KeyStoreError, KeyGone, sqlite3.Error) as error:
            raise TurnFileError(f"{ledger_file} cannot be read: {error}") from error


def _pages(ledger: Ledger, wanted: TurnFilter, seal_with: KeyStore | None) -> Iterator[Row]:
    before: int | None = None
    while True:
        page = read_page(ledger, wanted, before, _PAGE, seal_with)
        yield from page.rows()
        before = page.before
        if before is None:
            return
