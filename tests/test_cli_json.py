"""What `--json` writes is JSON, whatever is in it and wherever it goes; what is shown is what was said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.text import Text
from typer.testing import CliRunner

from clawrl import cli
from clawrl.cli.shared import console, errors, say, show_json
from clawrl.messages import Message
from tests.office import turn
from tests.operator_house import house

pytestmark = pytest.mark.timeout(90)
SAID = "a :fire: [b]x[/b] für \U0001f525 and half: \ud83d"


def in_a_process(code: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", f"from clawrl import cli\nfrom clawrl.cli import shared\nSAID = {SAID!a}\n{code}"]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "environ",
    [{}, {"FORCE_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}],
    ids=["plain", "colours", "ascii", "dumb"],
)
def test_json_in_a_pipe_is_one_line_of_ascii_that_says_what_was_said(environ: dict[str, str]) -> None:
    found = in_a_process("shared.show_json({'text': SAID})", **environ)
    assert found.returncode == 0, found.stderr
    assert found.stdout.isascii() and found.stdout.count(b"\n") == 1
    assert json.loads(found.stdout) == {"text": SAID}


def test_text_that_the_locale_has_no_bytes_for_is_escaped_and_ends_no_command() -> None:
    code = """
def app():
    shared.say(SAID)
    shared.errors.print(SAID, markup=False)
cli.app = app
cli.main()
"""
    environ = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}
    found = in_a_process(code, **environ)
    assert found.returncode == 0, found.stderr
    for shown in (found.stdout, found.stderr):
        assert shown.strip() == SAID.encode("ascii", "backslashreplace")


def test_words_between_colons_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    for one in (console, errors):
        one.print("a :fire: b", markup=False)
        one.print("a :warning: b")
    shown = capsys.readouterr()
    assert shown.out == shown.err == "a :fire: b\na :warning: b\n"


def test_a_terminal_obeys_nothing_that_people_wrote() -> None:
    wrote = "one\x1b[2J\x1b]0;title\x07\x9b2J\x7f\rtwo\n\tthree"
    kept = "one␛[2J␛]0;title\ufffd2J␡two\n\tthree".expandtabs()
    document = {"text": wrote}
    for one in (console, errors):
        with one.capture() as captured:
            one.print(wrote, markup=False, highlight=False)
            one.print(Text(wrote), Panel(Text(wrote)))
            one.print_json(json.dumps(document, ensure_ascii=False))
        assert not [c for c in captured.get() if not c.isprintable() and c != "\n"]
    with console.capture() as captured:
        say(wrote)
    assert captured.get().expandtabs() == f"{kept}\n"


def test_colours_are_still_a_matter_between_us_and_the_terminal() -> None:
    found = in_a_process("shared.say('\\x1b[1m', style='red')", FORCE_COLOR="1", TERM="xterm", NO_COLOR="")
    assert found.stdout.decode() == "\x1b[31m␛[1m\x1b[0m\n"


def test_on_a_terminal_json_is_laid_out_and_still_says_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show_json({"text": ":fire: [b]x[/b]", "more": 1})
    shown = capsys.readouterr().out
    assert shown.count("\n") > 2 and json.loads(shown) == {"text": ":fire: [b]x[/b]", "more": 1}


@pytest.mark.parametrize(
    "command",
    [["status"], ["turns"], ["turns", "list"], ["turns", "show", "t"], ["turns", "why", "t"], ["sessions"],
     ["sessions", "list"], ["sessions", "show", ":fire:"], ["versions"], ["pause", "--reason", ":fire:"], ["resume"]],
    ids=" ".join,
)  # fmt: skip
def test_every_command_that_has_it_writes_json_and_nothing_else(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with house(tmp_path / "state", monkeypatch) as home:
        said = turn("t", [Message(role="user", content=":fire:")], "hm", session=":fire:")
        home.do(home.coordinator.record(replace(said, response_text=SAID)))
        result = CliRunner().invoke(cli.app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii() and result.stdout.count("\n") == 1
    json.loads(result.stdout)
