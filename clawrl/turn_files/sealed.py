"""A sealed export made plain again, by whoever has the keys of the deployment that made it.

Rows keep their order. Where the texts are gone, because nothing was stored of them or their user was forgotten, the row
is there without them, as in a plain export.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clawrl.inspection.exported import without_texts
from clawrl.on_disk import deployment_of, keys_of
from clawrl.privacy.sealed_rows import OPEN, NotSealed, RowOpener
from clawrl.turn_files.rows import Row, TurnFileError, read_rows


class OpenedRows:
    """The rows, once. ``closed`` counts those so far whose texts are gone. Raises `TurnFileError`."""

    def __init__(self, file: Path, deployment_file: Path) -> None:
        self._file = file
        self._opener = RowOpener(keys_of(deployment_of(deployment_file, TurnFileError), TurnFileError))
        self.closed = 0

    def __iter__(self) -> Iterator[Row]:
        for number, sealed in read_rows(self._file):
            yield self._opened(number, sealed)

    def _opened(self, number: int, sealed: Row) -> Row:
        try:
            row = self._opener.open(sealed)
        except NotSealed as error:
            raise TurnFileError(f"{self._file}, line {number} {error}") from error
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise TurnFileError(f"{self._file}, line {number}: this is not a row of an export: {error!r}") from error
        if row is not None:
            return row
        self.closed += 1
        return without_texts({name: sealed[name] for name in OPEN})
