"""An export whose texts are under the keys of their users: what is in its bytes, who opens it, and until when."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clawrl.config import Deployment, read_deployment
from clawrl.ledger.store import Ledger
from clawrl.privacy.opening import open_ledger
from clawrl.serving.auth import owner_of_user
from clawrl.turn_files.conversations import read_conversations
from clawrl.turn_files.rows import COLUMNS, TurnFileError
from tests.cli_kit import lines, run, talked
from tests.ledger_kit import user
from tests.live import free_port, tiny_deployment
from tests.operator_house import House
from tests.privacy_kit import IDS, SECRET, found_in, said

ANN, BOB = map(owner_of_user, ("ann", "bob"))
pytestmark = pytest.mark.timeout(120)


def done(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str | Path) -> str:
    """The one line that says why."""
    result = run(*arguments)
    assert result.exit_code == 1 and result.output.count("\n") == 1, result.output
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A deployment that has stopped, in which two users said something."""
    return a_deployment(tmp_path)


def a_deployment(folder: Path) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_deployment(folder, free_port(), state_dir=str(folder / "state"))))
    deployment = read_deployment(file)
    deployment.state_path.mkdir(parents=True)
    with ledger_of(deployment) as ledger:
        for number, owner in enumerate((ANN, BOB)):
            ledger.record(said(f"t{number}", user("where?"), SECRET, session="s", owner=owner))
    return file


def ledger_of(deployment: Deployment) -> Ledger:
    return open_ledger(deployment.state_path, deployment.ledger, deployment.privacy)


def test_a_sealed_export_of_a_server_opens_to_what_a_plain_one_says(home: House, tmp_path: Path) -> None:
    home.do(talked(home))
    done("export-turns", tmp_path / "plain.jsonl")
    done("export-turns", tmp_path / "sealed.jsonl", "--sealed")
    from clawrl.privacy.sealed_rows import RowOpener

    opener = RowOpener(home.coordinator._keys)
    assert [opener.open(row) for row in lines(tmp_path / "sealed.jsonl")] == lines(tmp_path / "plain.jsonl")
    assert "hello s" not in (tmp_path / "sealed.jsonl").read_text()


def test_no_text_and_no_ids_are_in_the_bytes_of_a_sealed_export(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done("export-turns", out / "sealed.jsonl", "--sealed", "--deployment", file)
    assert found_in(out, SECRET, IDS) == []
    done("open-turns", out / "sealed.jsonl", out / "plain.jsonl", "--deployment", file)
    assert {name.split(":")[0] for name in found_in(out, SECRET, IDS)} == {"plain.jsonl"}
    done("export-turns", tmp_path / "same.jsonl", "--deployment", file)
    assert lines(out / "plain.jsonl") == lines(tmp_path / "same.jsonl")


@pytest.mark.parametrize("name", ["plain.jsonl", "plain.parquet"])
def test_who_was_forgotten_is_gone_from_every_copy_and_others_are_not(file: Path, tmp_path: Path, name: str) -> None:
    sealed = tmp_path / "sealed.jsonl"
    done("export-turns", sealed, "--sealed", "--deployment", file)
    done("forget", "--user", "ann", "--yes", "--deployment", file)
    said = json.loads(done("open-turns", sealed, tmp_path / name, "--deployment", file, "--json"))
    assert (said["turns"], said["closed"]) == (2, 1)
    if name.endswith(".parquet"):
        from pyarrow import parquet

        rows = parquet.read_table(tmp_path / name).to_pylist()
    else:
        rows = lines(tmp_path / name)
    theirs, hers = rows
    assert set(theirs) == set(hers) == set(COLUMNS)
    assert theirs["owner"] == BOB and theirs["response_text"] == SECRET and not theirs["text_gone"]
    assert hers["owner"] == ANN and hers["response_text"] == "" and hers["response_ids"] == []
    assert hers["text_gone"] and hers["turn_id"] == "t0"


def test_nobody_gets_a_new_key_by_an_export_of_what_is_gone(file: Path, tmp_path: Path) -> None:
    done("forget", "--user", "ann", "--yes", "--deployment", file)
    deployment = read_deployment(file)
    before = sorted(path.name for path in deployment.privacy.keys_path(deployment.state_path).rglob("*.key"))
    done("export-turns", tmp_path / "sealed.jsonl", "--sealed", "--deployment", file)
    assert before == sorted(path.name for path in deployment.privacy.keys_path(deployment.state_path).rglob("*.key"))


def other_turn(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"turn_id": "t9"}


def unsealed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"sealed": base64.b64encode(b'{"turn_id": "t1"}').decode()}


def altered(row: dict[str, Any]) -> dict[str, Any]:
    blob = bytearray(base64.b64decode(row["sealed"]))
    blob[-1] ^= 1
    return row | {"sealed": base64.b64encode(blob).decode()}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (other_turn, "line 1 has the sealed part of another turn"),
        (unsealed, "it is not sealed"),
        (altered, "has been changed"),
        (lambda row: row | {"sealed": "?"}, "something else where its sealed part should be"),
        (lambda row: row | {"keyring": "f" * 32}, "was sealed with the keys ffffffff"),
        (lambda row: {"turn_id": "t1"}, "is not a row of a sealed export"),
        (lambda row: [1], "line 1: a row is a JSON object"),
    ],
    ids=["another turn's", "unsealed", "altered", "no base64", "other keys", "plain", "a list"],
)
def test_what_is_not_a_sealed_row_is_one_line_and_nothing_is_written(
    file: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], line: str
) -> None:
    sealed = tmp_path / "sealed.jsonl"
    done("export-turns", sealed, "--sealed", "--deployment", file)
    first, second = lines(sealed)
    sealed.write_text(f"{json.dumps(change(first))}\n{json.dumps(second)}\n")
    assert line in refused("open-turns", sealed, tmp_path / "plain.jsonl", "--deployment", file)
    assert not (tmp_path / "plain.jsonl").exists()


def test_what_cannot_be_done_is_said_before_anything_is(file: Path, tmp_path: Path) -> None:
    parquet = tmp_path / "sealed.parquet"
    assert "must end in .jsonl" in refused("export-turns", parquet, "--sealed", "--deployment", file)
    done("export-turns", tmp_path / "sealed.jsonl", "--sealed", "--deployment", file)
    with pytest.raises(TurnFileError, match="clawrl open-turns"):
        read_conversations(tmp_path / "sealed.jsonl")
    deployment = read_deployment(file)
    keys = deployment.privacy.keys_path(deployment.state_path)
    shutil.rmtree(keys)
    again = ("open-turns", tmp_path / "sealed.jsonl", tmp_path / "plain.jsonl", "--deployment", file)
    assert "holds no keys" in refused(*again) and not keys.exists()


def test_sealed_is_true_or_false(home: House) -> None:
    import httpx

    from tests.live import KEY

    answer = httpx.get(f"{home.url}/clawrl/export?sealed=maybe", headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "sealed"
