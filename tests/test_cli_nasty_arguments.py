"""Every command with what nobody should give it: one line that says what is wrong, exit code 1, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from clawrl import cli
from tests.cli_kit import run
from tests.live import free_port, tiny_deployment

pytestmark = pytest.mark.timeout(90)
NO_UTF8 = b"\xff".decode("utf-8", "surrogateescape")
"""As a shell passes on a byte that is no text."""

ASKING = {
    "status": ["status"],
    "wait-ready": ["wait-ready", "--timeout", "0"],
    "pause": ["pause"],
    "resume": ["resume"],
    "rollback": ["rollback", "1"],
    "publish": ["publish"],
    "turns": ["turns"],
    "turns list": ["turns", "list"],
    "turns show": ["turns", "show", "t"],
    "turns why": ["turns", "why", "t"],
    "sessions": ["sessions"],
    "sessions list": ["sessions", "list"],
    "sessions show": ["sessions", "show", "s"],
    "versions": ["versions"],
    "feedback": ["feedback", "1", "--turn", "t"],
    "chat": ["chat"],
    "chat with a model": ["chat", "--model", "m"],
    "forget": ["forget", "--turn", "t", "--yes"],
    "export-turns": ["export-turns", "out.jsonl"],
    "import-turns": ["import-turns", "talks.jsonl"],
    "import-turns with a model": ["import-turns", "talks.jsonl", "--model", "m"],
}
"""Every command that asks a server."""
READING = {
    "export": ["export", "out"],
    "backup": ["backup", "out"],
    "forget": ["forget", "--turn", "t", "--yes"],
    "export-turns": ["export-turns", "out.jsonl"],
    "open-turns": ["open-turns", "talks.jsonl", "out.jsonl"],
    "calibrate": ["calibrate", "cases.jsonl"],
}
"""Every command that reads a deployment's file with ``--deployment``."""
OTHERS = {"check", "contract", "demo"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CLAWRL_API_KEY", raising=False)
    monkeypatch.delenv("CLAWRL_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    talk = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]}
    (tmp_path / "talks.jsonl").write_text(json.dumps(talk))
    cases = [{"request": "q", "response": "r", "evidence": "thanks", "label": label} for label in (1, -1)]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    return tmp_path


def is_one_line(result: Result) -> str:
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1, result.output
    return result.output


def names(command: Any, prefix: str = "") -> set[str]:
    if not hasattr(command, "commands"):
        return {prefix.strip()}
    return {name for part, one in command.commands.items() for name in names(one, f"{prefix} {part}")}


def test_every_command_is_in_these_tables() -> None:
    assert names(typer.main.get_command(cli.app)) <= {*ASKING, *READING, *OTHERS}


@pytest.mark.parametrize("command", ASKING)
@pytest.mark.parametrize(
    ("url", "line"),
    [("http://[::bad", "is not the address of a server"), ("localhost:8000", "has to begin with http://"),
     ("http://", "has to begin with http://"), (f"http://a{NO_UTF8}b", "is not the address of a server")],
    ids=["a port", "no scheme", "no host", "no text"],
)  # fmt: skip
def test_an_address_that_is_none(command: str, url: str, line: str) -> None:
    assert line in is_one_line(run(*ASKING[command], "--url", url))


@pytest.mark.parametrize("command", ASKING)
@pytest.mark.parametrize("key", ["schlüssel€", "two\nlines", NO_UTF8], ids=["letters", "lines", "no text"])
def test_a_key_that_no_header_takes(command: str, key: str) -> None:
    assert "printable ASCII" in is_one_line(run(*ASKING[command], "--url", "http://127.0.0.1:9", "--api-key", key))


@pytest.mark.parametrize(
    "command",
    [["pause", "--reason", NO_UTF8], ["turns", "--session", NO_UTF8], ["turns", "show", NO_UTF8],
     ["turns", "why", NO_UTF8], ["sessions", "show", NO_UTF8], ["feedback", "1", "--turn", NO_UTF8],
     ["feedback", "1", "--session", NO_UTF8, "--comment", NO_UTF8], ["forget", "--yes", "--user", NO_UTF8],
     ["export-turns", "out.jsonl", "--session", NO_UTF8]],
    ids=["pause", "turns", "show", "why", "session", "turn", "comment", "forget", "export"],
)  # fmt: skip
def test_an_argument_that_is_no_text(command: list[str], folder: Path) -> None:
    assert "no UTF-8" in is_one_line(run(*command, "--url", "http://127.0.0.1:9"))
    assert sorted(path.name for path in folder.iterdir()) == ["cases.jsonl", "talks.jsonl"]


FILES = {
    "missing": None,
    "a folder": "folder",
    "bytes": b"\xff\xfe\x00{",
    "no YAML": b"a: [1, 2",
    "a list": b"- 1",
    "a number": b"1",
    "empty": b"",
    "no application": b"applications: []",
    "no arguments": b"applications: [{name: a, import_path: 'clawrl.graph:build', args: 5}]",
}


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("content", FILES)
def test_a_file_that_describes_no_deployment_is_one_line(command: str, content: str, folder: Path) -> None:
    file, what = folder / "deployment.yaml", FILES[content]
    if what == "folder":
        file.mkdir()
    elif isinstance(what, bytes):
        file.write_bytes(what)
    line = is_one_line(run(*READING[command], "--deployment", str(file)))
    assert "deployment.yaml" in line
    assert not (folder / "out").exists() and not (folder / "out.jsonl").exists()


@pytest.mark.parametrize("content", FILES)
def test_what_check_says_of_a_file_that_describes_no_deployment_is_short(content: str, folder: Path) -> None:
    file, what = folder / "deployment.yaml", FILES[content]
    if what == "folder":
        file.mkdir()
    elif isinstance(what, bytes):
        file.write_bytes(what)
    result = run("check", str(file))
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), repr(result.exception)


@pytest.mark.parametrize("command", [name for name in READING if name != "calibrate"])
def test_a_deployment_that_never_ran_is_one_line(command: str, folder: Path) -> None:
    import yaml

    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_deployment(folder, free_port(), state_dir=str(folder / "state"))))
    before = sorted(path.name for path in folder.iterdir())
    is_one_line(run(*READING[command], "--deployment", str(file)))
    assert sorted(path.name for path in folder.iterdir()) == before, "and nothing has come into being"


@pytest.mark.parametrize(
    "command",
    [["calibrate", "missing"], ["calibrate", "bytes"], ["calibrate", "."], ["demo", "--deployment", "bytes"],
     ["contract", "reward", "no.such.module:name"], ["contract", "reward", "nonsense"], ["contract", "reward", ":"],
     ["contract", "reward", "json:nothing"], ["contract", "reward", NO_UTF8], ["contract", "reward", "broken:name"],
     ["export", "out", "--version", "9" * 30], ["forget"], ["forget", "--turn", "t", "--user", "u"],
     ["feedback", "1"], ["import-turns", "missing.jsonl"], ["import-turns", "talks.jsonl", "--history", "other"],
     ["import-turns", "talks.jsonl", "--progress", "bytes"], ["import-turns", "talks.jsonl", "--progress", "."],
     ["export-turns", "talks.csv"], ["export-turns", "talks.jsonl"], ["export-turns", "talks.jsonl/out.jsonl"],
     ["export-turns", "x" * 300 + ".jsonl"], ["open-turns", "bytes", "out.jsonl", "--deployment", "x.yaml"]],
    ids=["no cases", "cases", "a folder of cases", "demo", "module", "no colon",
         "colon", "name", "no text", "a broken module", "version", "nobody", "both", "which",
         "missing", "history", "bytes", "a folder", "kind", "there", "below a file", "long", "sealed"],
)  # fmt: skip
def test_an_argument_that_cannot_be_is_one_line(
    command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "broken.py").write_text("def name(:\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("CLAWRL_URL", "http://127.0.0.1:9")
    is_one_line(run(*command))
