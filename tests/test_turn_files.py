"""Turns to a file: what is in it, who can load it, and what is left alone on the way."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from clawrl.config import Deployment, read_deployment
from clawrl.inspection.exported import export_row
from clawrl.ledger.folder import hold, holder
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import Turn, TurnState
from clawrl.privacy.opening import open_ledger as open_with_keys
from clawrl.turn_files.export import rows_of_stopped
from clawrl.turn_files.rows import COLUMNS, TurnFileError, write
from tests.cli_kit import lines, run, talked
from tests.ledger_kit import open_ledger, queue, say, user
from tests.live import free_port, tiny_deployment
from tests.operator_house import House


def loaded(file: Path, cache: Path) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets")
    kind = "parquet" if file.suffix == ".parquet" else "json"
    found = datasets.load_dataset(kind, data_files=str(file), split="train", cache_dir=str(cache))
    return list(found)


def test_an_export_of_a_server_is_loaded_by_datasets_from_both_forms(home: House, tmp_path: Path) -> None:
    home.do(talked(home))
    made: dict[str, list[dict[str, Any]]] = {}
    for name in ("turns.jsonl", "turns.parquet"):
        result = run("export-turns", str(tmp_path / name), "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.output) == {"file": str(tmp_path / name), "turns": 3}
        made[name] = loaded(tmp_path / name, tmp_path / "cache")
    ledger: Turn = home.do(home.coordinator._db.run(lambda ledger: ledger.turn("s-0")))
    for name, rows in made.items():
        assert [row["turn_id"] for row in rows] == ["s-2", "s-1", "s-0"], name
        row = rows[-1]
        assert set(row) == set(COLUMNS)
        assert row["response_ids"] == ledger.response_ids.tolist() and row["prompt_ids"] == ledger.prompt_ids.tolist()
        assert np.array_equal(np.asarray(row["response_logps"], np.float32), ledger.response_logps)
        assert row["spans"] == [{"start": 0, "end": 4, "version": 0}]
        assert (row["state"], row["reward"], row["temperature"]) == ("queued", 1.0, 1.0)
        assert row["messages"][0]["content"] == "hello s" and row["answer"][0]["content"] == "answer 0"
        assert row["evidence"][0] == {
            "role": "user",
            "content": "ok",
            "reasoning_content": "",
            "tool_calls": "",
            "tool_call_id": "",
            "name": "",
        }
    assert not list(tmp_path.glob(".turns*")), "what was written aside is gone"


def test_an_export_can_be_narrowed(home: House, tmp_path: Path) -> None:
    home.do(talked(home))
    assert run("export-turns", str(tmp_path / "q.jsonl"), "--state", "queued").exit_code == 0
    assert [row["turn_id"] for row in lines(tmp_path / "q.jsonl")] == ["s-1", "s-0"]
    refused = run("export-turns", str(tmp_path / "x.jsonl"), "--state", "asleep")
    assert refused.exit_code == 1 and "state must be one of" in refused.output and not (tmp_path / "x.jsonl").exists()


def a_deployment(folder: Path) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_deployment(folder, free_port(), state_dir=str(folder / "state"))))
    return file


def test_the_ledger_of_a_stopped_deployment_is_exported_and_that_of_a_running_one_is_not(tmp_path: Path) -> None:
    file = a_deployment(tmp_path)
    result = run("export-turns", str(tmp_path / "a.parquet"), "--deployment", str(file))
    assert result.exit_code == 1 and "holds no ledger" in result.output
    deployment = read_deployment(file)
    with open_with_keys(deployment.state_path, deployment.ledger, deployment.privacy) as ledger:
        queue(ledger, "a", "b")
        say(ledger, "c", user("half a character: \ud83d"), "hm")
    held = hold(deployment.state_path, "tiny")
    result = run("export-turns", str(tmp_path / "a.parquet"), "--deployment", str(file))
    assert result.exit_code == 1 and "is in use" in result.output and "--url" in result.output
    held.release()
    for name in ("a.parquet", "a.jsonl"):
        result = run("export-turns", str(tmp_path / name), "--deployment", str(file))
        assert result.exit_code == 0, result.output
    rows = loaded(tmp_path / "a.parquet", tmp_path / "cache")
    assert [row["turn_id"] for row in rows] == ["c", "b", "a"] and rows[2]["hints"] == ["be brief"]
    assert rows[0]["messages"][0]["content"] == "half a character: ?"
    assert lines(tmp_path / "a.jsonl")[0]["messages"][0]["content"].endswith("\ud83d"), "JSON can say it"


@pytest.mark.parametrize("command", ["export-turns", "forget"])
@pytest.mark.parametrize(
    ("master", "line"),
    [("", "does not hold 64 hex digits"), ("ab" * 32, "were sealed with another master key; bring that one back")],
    ids=["missing", "another"],
)
def test_without_the_master_key_a_stopped_deployment_is_one_line_about_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, master: str, line: str
) -> None:

    file = tmp_path / "tiny.yaml"
    privacy = {"master_key": "env:CLAWRL_TEST_MASTER"}
    settings = tiny_deployment(tmp_path, free_port(), state_dir=str(tmp_path / "state"), privacy=privacy)
    file.write_text(yaml.safe_dump(settings))
    deployment = read_deployment(file)
    monkeypatch.setenv("CLAWRL_TEST_MASTER", "cd" * 32)
    with open_with_keys(deployment.state_path, deployment.ledger, deployment.privacy) as ledger:
        queue(ledger, "a")
    monkeypatch.setenv("CLAWRL_TEST_MASTER", master)
    target = tmp_path / "a.jsonl"
    named = [str(target)] if command == "export-turns" else ["--turn", "a", "--yes"]
    result = run(command, *named, "--deployment", str(file))
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    assert result.output.count("\n") == 1 and "the keys of 'tiny'" in result.output and line in result.output
    assert not target.exists() and not list(tmp_path.glob(".a*"))
    monkeypatch.setenv("CLAWRL_TEST_MASTER", "cd" * 32)
    assert run(command, *named, "--deployment", str(file)).exit_code == 0


def a_stopped_one(folder: Path) -> tuple[Path, Deployment]:
    file = a_deployment(folder)
    deployment = read_deployment(file)
    with open_with_keys(deployment.state_path, deployment.ledger, deployment.privacy) as ledger:
        queue(ledger, "a")
    return file, deployment


@pytest.mark.parametrize("command", ["export-turns", "forget"])
@pytest.mark.parametrize(
    ("lost", "line"),
    [
        (".", "holds no keys; put them back"),
        ("keyring.json", "holds no keys; put them back"),
        ("master.key", "master.key is missing, but there are keys that it opens; put it back"),
        ("master.key=zz", "master.key does not hold 64 hex digits"),
        ("master.key=\xff", "master.key does not hold 64 hex digits"),
        ("keyring.json={", "keyring.json is damaged"),
    ],
    ids=["all", "the name", "the master key", "no hex", "no text", "no JSON"],
)
def test_keys_that_are_lost_or_damaged_are_one_line_and_no_others_are_made(
    tmp_path: Path, command: str, lost: str, line: str
) -> None:
    file, deployment = a_stopped_one(tmp_path)
    keys = deployment.privacy.keys_path(deployment.state_path)
    name, _, content = lost.partition("=")
    if lost == ".":
        shutil.rmtree(keys)
    elif content:
        (keys / name).write_bytes(content.encode("latin-1"))
    else:
        (keys / name).unlink()

    def there() -> list[tuple[str, bytes]]:
        return sorted((str(path), path.read_bytes()) for path in keys.rglob("*") if path.is_file())

    before = there()
    named = [str(tmp_path / "a.jsonl")] if command == "export-turns" else ["--turn", "a", "--yes"]
    result = run(command, *named, "--deployment", str(file))
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    assert result.output.count("\n") == 1 and line in result.output, result.output
    assert there() == before and keys.exists() == (lost != ".") and not (tmp_path / "a.jsonl").exists()
    assert holder(deployment.state_path) is None, "and the folder is free again"


def earlier_format(file: sqlite3.Connection) -> None:
    for column in ("withheld", "forgotten"):
        file.execute(f"ALTER TABLE turns DROP COLUMN {column}")
    file.execute("DROP TABLE protection")
    file.execute("PRAGMA user_version = 3")


def without_protection(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM protection")


@pytest.mark.parametrize("age", [earlier_format, without_protection])
def test_an_export_does_not_bring_a_ledger_up_to_date_in_passing(
    tmp_path: Path, age: Callable[[sqlite3.Connection], None]
) -> None:
    file, deployment = a_stopped_one(tmp_path)
    path, keys = deployment.state_path / "ledger.sqlite", deployment.privacy.keys_path(deployment.state_path)
    shutil.rmtree(keys)
    with closing(sqlite3.connect(path)) as aged, aged:
        age(aged)
    before = path.read_bytes()
    result = run("export-turns", str(tmp_path / "a.jsonl"), "--deployment", str(file))
    assert result.exit_code == 1 and "brings it up to date, then export" in result.output, result.output
    assert result.output.count("\n") == 1 and path.read_bytes() == before and not keys.exists()


def test_an_export_seals_nothing_that_the_next_start_is_to_seal(tmp_path: Path) -> None:
    file = a_deployment(tmp_path)
    deployment = read_deployment(file)
    plain = deployment.privacy.model_copy(update={"encrypt": False})
    with open_with_keys(deployment.state_path, deployment.ledger, plain) as ledger:
        queue(ledger, "a")
        (asked,) = ledger._db.rows("SELECT new_messages FROM arrivals WHERE turn_id = 'a'")
    assert run("export-turns", str(tmp_path / "a.jsonl"), "--deployment", str(file)).exit_code == 0
    assert lines(tmp_path / "a.jsonl")[0]["messages"]
    with closing(sqlite3.connect(deployment.state_path / "ledger.sqlite")) as found:
        assert found.execute("SELECT new_messages FROM arrivals WHERE turn_id = 'a'").fetchone() == tuple(asked)


@pytest.mark.parametrize("content", [b"", b"not a database at all"], ids=["empty", "other"])
def test_a_file_that_is_no_ledger_is_one_line(tmp_path: Path, content: bytes) -> None:
    file, deployment = a_stopped_one(tmp_path)
    (deployment.state_path / "ledger.sqlite").write_bytes(content)
    for command in (["export-turns", str(tmp_path / "a.jsonl")], ["forget", "--turn", "a", "--yes"]):
        result = run(*command, "--deployment", str(file))
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
        assert result.output.count("\n") == 1 and "ledger.sqlite" in result.output


def test_nobody_starts_in_a_folder_that_is_being_exported(tmp_path: Path) -> None:
    file, deployment = a_stopped_one(tmp_path)
    with closing(rows_of_stopped(file, {})) as rows:
        next(rows)
        assert "tiny (export)" in str(holder(deployment.state_path))
    assert holder(deployment.state_path) is None


def test_an_export_never_takes_the_place_of_a_file_and_names_its_forms(tmp_path: Path) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    for target, line in ((there, "is not overwritten"), (tmp_path / "turns.csv", "must end in .jsonl or .parquet")):
        with pytest.raises(TurnFileError, match=line):
            write([], target)
    assert there.read_text() == "mine"

    def breaks() -> Iterator[dict[str, Any]]:
        yield {"turn_id": "a"}
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        write(breaks(), tmp_path / "half.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.jsonl"]


def test_every_row_has_every_column_with_and_without_its_text(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    queue(ledger, "a")
    (row,) = ledger.find_turns(TurnFilter(state=TurnState.QUEUED)).rows
    text = ledger.texts_if_any(row.turn_id)
    assert text is not None
    assert tuple(export_row(row, text)) == tuple(export_row(row, None)) == COLUMNS
    gone = export_row(row, None)
    assert gone["text_gone"] and gone["prompt_ids"] == gone["response_ids"] == gone["response_logps"] == []


def test_the_ledger_is_not_left_open_by_an_export(tmp_path: Path) -> None:
    file = a_deployment(tmp_path)
    deployment = read_deployment(file)
    path = deployment.state_path / "ledger.sqlite"
    with open_with_keys(deployment.state_path, deployment.ledger, deployment.privacy) as ledger:
        queue(ledger, "a")
    assert run("export-turns", str(tmp_path / "a.jsonl"), "--deployment", str(file)).exit_code == 0
    with sqlite3.connect(path, timeout=0.1) as other:
        other.execute("BEGIN EXCLUSIVE")
