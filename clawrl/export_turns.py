"""Turns as a data set in one file: JSON lines, or Parquet, as the file's name ends. Both load with `datasets`.

From a running server by its API, page by page, newest first; or from the ledger of a deployment that has stopped. The
file appears whole or not at all, and never in the place of another. Parquet has the columns' types in it; from JSON
lines `datasets` reads them off the first megabytes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clawrl.client import ApiClient
from clawrl.config import Deployment
from clawrl.inspection.asked import turn_filter
from clawrl.inspection.exported import export_row
from clawrl.ledger import LedgerFileError
from clawrl.ledger.folder import holder
from clawrl.on_disk import deployment_of, keys_of, ledger_file_of
from clawrl.privacy.keys import KeyStoreError
from clawrl.privacy.opening import open_ledger

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".parquet")
_PAGE = 100
_ROWS_PER_GROUP = 1_000


class ExportTurnsError(RuntimeError):
    """There is nothing to export, or no place for it; the text names the remedy."""


def rows_of_server(client: ApiClient, filters: dict[str, Any]) -> Iterator[Row]:
    before: int | None = None
    while True:
        page = client.export_page(_PAGE, before, **filters)
        yield from page["rows"]
        before = page["before"]
        if before is None:
            return


def rows_of_stopped(file: Path, filters: dict[str, Any]) -> Iterator[Row]:
    """Of the deployment that a file describes. Raises `ExportTurnsError`, also if it runs after all."""
    deployment = deployment_of(file, ExportTurnsError)
    ledger_file = _ledger_file(deployment)
    wanted = turn_filter({name: str(value) for name, value in filters.items()})
    keys = keys_of(deployment, ExportTurnsError)
    try:
        with open_ledger(deployment.state_path, deployment.ledger, deployment.privacy, keys=keys) as ledger:
            before: int | None = None
            while True:
                page = ledger.find_turns(wanted, before, _PAGE)
                for row in page.rows:
                    yield export_row(row, ledger.texts_if_any(row.turn_id))
                before = page.before
                if before is None:
                    return
    except (LedgerFileError, KeyStoreError, sqlite3.Error) as error:
        raise ExportTurnsError(f"{ledger_file} cannot be read: {error}") from error


def write(rows: Iterable[Row], target: Path) -> int:
    """Returns how many turns are in the file. Raises `ExportTurnsError`."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    aside = Path(name)
    try:
        count = _write_parquet(rows, aside) if target.suffix == ".parquet" else _write_lines(rows, aside)
        # Fails, where `rename` would not, if something came there meanwhile.
        os.link(aside, target)
    except FileExistsError:
        raise ExportTurnsError(f"{target} has come into being meanwhile and is not overwritten") from None
    finally:
        aside.unlink(missing_ok=True)
    return count


def check_target(target: Path) -> None:
    """Before anything is asked for. Raises `ExportTurnsError`."""
    if target.suffix not in SUFFIXES:
        raise ExportTurnsError(f"{target} must end in {' or '.join(SUFFIXES)}: that says what is written")
    if target.exists():
        raise ExportTurnsError(f"{target} is there already and is not overwritten; name another file, or remove it")
    if target.suffix == ".parquet":
        _pyarrow()


def _ledger_file(deployment: Deployment) -> Path:
    file = ledger_file_of(deployment, ExportTurnsError)
    running = holder(deployment.state_path)
    if running is not None:
        raise ExportTurnsError(f"{running} is running: export from it with --url, without --deployment")
    return file


def _write_lines(rows: Iterable[Row], target: Path) -> int:
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007
            # ASCII, so that a lone surrogate in somebody's text survives.
            file.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")
    return count


def _write_parquet(rows: Iterable[Row], target: Path) -> int:
    pyarrow, schema, count = _pyarrow(), _schema(), 0
    from pyarrow import parquet

    with parquet.ParquetWriter(target, schema) as writer:
        batch: list[Row] = []

        def flush() -> None:
            if batch:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
                batch.clear()

        for count, row in enumerate(rows, start=1):  # noqa: B007
            batch.append(_whole_characters(row))
            if len(batch) == _ROWS_PER_GROUP:
                flush()
        flush()
    return count


def _whole_characters(value: Any) -> Any:
    """Parquet's texts are UTF-8, in which half of a character has no place."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole_characters(item) for name, item in value.items()}
    return value


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ExportTurnsError("pyarrow is missing; install the extra: pip install 'clawrl[export]'") from None
    return pyarrow


def _schema() -> Any:
    pa = _pyarrow()
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    message = pa.struct([(name, text) for name in _MESSAGE])
    span = pa.struct([("start", whole), ("end", whole), ("version", whole)])
    kinds = {
        **dict.fromkeys(_TEXTS, text),
        **dict.fromkeys(("seq", "step", "verdict"), whole),
        **dict.fromkeys(("finished_at", "temperature", "score", "reward", "feedback"), real),
        **dict.fromkeys(("messages", "answer", "evidence"), pa.list_(message)),
        **dict.fromkeys(("prompt_ids", "response_ids"), pa.list_(pa.int32())),
        **dict.fromkeys(("tools", "hints"), pa.list_(text)),
        "response_logps": pa.list_(pa.float32()),
        "spans": pa.list_(span),
        "text_gone": pa.bool_(),
    }
    return pa.schema([(name, kinds[name]) for name in COLUMNS])


_MESSAGE = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
_TEXTS = (
    "turn_id", "owner", "session", "parent", "kind", "state", "drop_reason", "finish_reason", "response_text",
    "comment", "judge", "reasoning",
)  # fmt: skip
COLUMNS = (
    "turn_id", "seq", "owner", "session", "parent", "kind", "state", "drop_reason", "step", "finished_at",
    "finish_reason", "text_gone", "messages", "tools", "answer", "response_text", "evidence", "prompt_ids",
    "response_ids", "response_logps", "spans", "temperature", "verdict", "score", "reward", "feedback", "comment",
    "judge", "reasoning", "hints",
)  # fmt: skip
