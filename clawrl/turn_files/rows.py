"""Turns as a data set in one file: JSON lines, or Parquet, as the file's name ends. Both load with `datasets`.

A file appears whole or not at all, and never in the place of another. Parquet has the columns' types in it; from JSON
lines `datasets` reads them off the first megabytes. Whatever is read may have been written elsewhere: a byte order
mark is taken for none, and a line ends at a line feed only, since JSON has other ends of lines inside its texts.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".parquet")
_ROWS_PER_GROUP = 1_000


class TurnFileError(RuntimeError):
    """A file cannot be read or made; the text names the line, where there is one, and the remedy."""


def read_rows(file: Path) -> Iterator[tuple[int, Row]]:
    """Each row with its line, counted from 1. Raises `TurnFileError`, not before it comes to what is wrong."""
    return _read_parquet(file) if file.suffix == ".parquet" else _read_lines(file)


def write(rows: Iterable[Row], target: Path) -> int:
    """Returns how many turns are in the file. Raises `TurnFileError`."""
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
        raise TurnFileError(f"{target} has come into being meanwhile and is not overwritten") from None
    finally:
        aside.unlink(missing_ok=True)
    return count


def check_target(target: Path, *, sealed: bool = False) -> None:
    """Before anything is asked for. Raises `TurnFileError`."""
    if sealed and target.suffix != ".jsonl":
        raise TurnFileError(f"{target} must end in .jsonl: a sealed export is JSON lines")
    if target.suffix not in SUFFIXES:
        raise TurnFileError(f"{target} must end in {' or '.join(SUFFIXES)}: that says what is written")
    if target.exists():
        raise TurnFileError(f"{target} is there already and is not overwritten; name another file, or remove it")
    if target.suffix == ".parquet":
        pyarrow()


def _read_lines(file: Path) -> Iterator[tuple[int, Row]]:
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _row(file, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise TurnFileError(f"{file} cannot be read: {error}") from error


def _row(file: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise TurnFileError(f"{file}, line {number}: this is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise TurnFileError(f"{file}, line {number}: a row is a JSON object, not {type(row).__name__}")
    return row


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _read_parquet(file: Path) -> Iterator[tuple[int, Row]]:
    arrow = pyarrow()
    from pyarrow import parquet

    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise TurnFileError(f"{file} cannot be read as Parquet: {error}") from error
    yield from enumerate(rows, start=1)


def _write_lines(rows: Iterable[Row], target: Path) -> int:
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007
            # ASCII, so that a lone surrogate in somebody's text survives.
            file.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")
    return count


def _write_parquet(rows: Iterable[Row], target: Path) -> int:
    arrow, schema, count = pyarrow(), _schema(), 0
    from pyarrow import parquet

    with parquet.ParquetWriter(target, schema) as writer:
        batch: list[Row] = []

        def flush() -> None:
            try:
                writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
            except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise TurnFileError(f"a row has something else in a column than its kind: {error}") from error
            batch.clear()

        for count, row in enumerate(rows, start=1):  # noqa: B007
            batch.append(_whole_characters(row))
            if len(batch) == _ROWS_PER_GROUP:
                flush()
        if batch:
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


def pyarrow() -> Any:
    """The library; it is an extra."""
    try:
        import pyarrow as found
    except ImportError:
        raise TurnFileError("pyarrow is missing; install the extra: pip install 'clawrl[export]'") from None
    return found


def _schema() -> Any:
    pa = pyarrow()
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
