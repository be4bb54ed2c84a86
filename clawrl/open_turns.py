"""A sealed export made plain again, by whoever has the keys of the deployment that made it.

Rows keep their order. Where the texts are gone, because nothing was stored of them or their user was forgotten, the row
is there without them, as in a plain export.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from clawrl.config import read_deployment
from clawrl.inspection.exported import without_texts
from clawrl.privacy.keys import KeyStoreError
from clawrl.privacy.opening import look_at_keys
from clawrl.privacy.sealed_rows import OPEN, NotSealed, RowOpener

Row = dict[str, Any]


class OpenTurnsError(RuntimeError):
    """The file or its keys cannot be read; the text names the line and the remedy."""


class OpenedRows:
    """The rows, once. ``closed`` counts those so far whose texts are gone."""

    def __init__(self, file: Path, deployment_file: Path) -> None:
        self._file = file
        self._opener = _opener(deployment_file)
        self.closed = 0

    def __iter__(self) -> Iterator[Row]:
        with self._file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield self._row(number, line)

    def _row(self, number: int, line: str) -> Row:
        try:
            sealed = json.loads(line)
            row = self._opener.open(sealed)
        except NotSealed as error:
            raise OpenTurnsError(f"{self._file}, line {number} {error}") from error
        except (ValueError, AttributeError) as error:
            raise OpenTurnsError(f"{self._file}, line {number}: this is not a row of an export: {error}") from error
        if row is not None:
            return row
        self.closed += 1
        return without_texts({name: sealed[name] for name in OPEN})


def _opener(deployment_file: Path) -> RowOpener:
    try:
        deployment = read_deployment(deployment_file)
    except (OSError, ValueError, LookupError, TypeError, StopIteration, yaml.YAMLError) as error:
        raise OpenTurnsError(
            f"{deployment_file} is not a deployment file that `clawrl check` accepts: {error}"
        ) from error
    try:
        return RowOpener(look_at_keys(deployment.state_path, deployment.privacy))
    except (KeyStoreError, ValueError, OSError) as error:
        raise OpenTurnsError(f"the keys of {deployment.name!r} cannot be used: {error}") from error
