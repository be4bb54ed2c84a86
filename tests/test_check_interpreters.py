"""`clawrl check` and the interpreters of the engines: which are here, and which NCCL each side has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from clawrl import cli
from clawrl.check import interpreters
from clawrl.check.interpreters import Findings, ask_nccl, look_at_interpreters
from clawrl.config import Deployment
from tests.live import KEY, tiny_deployment


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAWRL_TEST_KEY", KEY)


def interpreter(folder: Path, name: str, script: str) -> str:
    """A program that answers whatever it is asked."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def with_nccl(folder: Path, name: str, version: str) -> str:
    return interpreter(folder, name, f"echo 'a library greets'; echo nccl={version}")


def document(model: Path, python: str, transport: str = "nccl", **overrides: Any) -> dict[str, Any]:
    settings = {
        "policy__engine": {
            "kind": "sglang",
            "dtype": "float32",
            "context_length": 512,
            "sglang": {"python": python},
        },
        "policy__resources": {"num_gpus": 1},
        "trainer__resources": {"num_gpus": 1},
        "publish__transport": transport,
    }
    return tiny_deployment(model, 8012, **(settings | overrides))


def look(model: Path, python: str, own: str, transport: str = "nccl", timeout_s: float = 60.0) -> Findings:
    args = document(model, python, transport)["applications"][0]["args"]
    return look_at_interpreters(Deployment.model_validate(args), own, timeout_s)


def check(tmp_path: Path, content: dict[str, Any]) -> Result:
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(content))
    return CliRunner().invoke(cli.app, ["check", str(file)])


@pytest.mark.parametrize("engine", ["2.27.5", "2.27.3", "2.27"])
def test_two_sides_with_the_same_nccl_are_not_worth_a_word(tmp_path: Path, tiny_folder: Path, engine: str) -> None:
    theirs, own = with_nccl(tmp_path, "theirs", engine), with_nccl(tmp_path, "own", "2.27.5")
    assert look(tiny_folder, theirs, own) == Findings()


@pytest.mark.parametrize("engine", ["2.29.2", "3.27.5"])
def test_two_sides_with_different_nccl_are_refused_with_both_versions(
    tmp_path: Path, tiny_folder: Path, engine: str
) -> None:
    theirs, own = with_nccl(tmp_path, "theirs", engine), with_nccl(tmp_path, "own", "2.27.5")
    found = look(tiny_folder, theirs, own)
    assert len(found.problems) == 1 and not found.notes
    for piece in ("policy.engine.sglang.python: ", f"NCCL {engine}", "2.27.5", "set publish.transport: gloo"):
        assert piece in found.problems[0]
    assert look(tiny_folder, theirs, own, transport="gloo") == Findings(), "nobody speaks NCCL there"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo nccl=none", "has a torch without NCCL"),
        ("echo 'ImportError: no torch here' >&2; exit 1", "cannot import torch: ImportError: no torch here"),
        ("exit 1", "cannot import torch: it said nothing"),
        ("exec sleep 300", "did not answer in 2 s"),
    ],
)
@pytest.mark.parametrize("side", ["theirs", "own"])
def test_a_side_that_cannot_say_its_nccl_is_a_note_that_names_it(
    tmp_path: Path, tiny_folder: Path, script: str, why: str, side: str
) -> None:
    sides = {"theirs": with_nccl(tmp_path, "theirs", "2.27.5"), "own": with_nccl(tmp_path, "own", "2.29.0")}
    sides[side] = interpreter(tmp_path, "mute", script)
    timeout_s = 2.0 if "sleep" in script else 60.0
    found = look(tiny_folder, sides["theirs"], sides["own"], timeout_s=timeout_s)
    assert found.problems == () and len(found.notes) == 1
    assert f"not compared: {sides[side]} {why}" in found.notes[0]


def test_one_interpreter_for_both_sides_is_not_asked(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("it has one NCCL")

    monkeypatch.setattr(interpreters, "ask_nccl", asked)
    assert look(tiny_folder, "", sys.executable) == Findings()


def test_the_question_is_answered_by_a_real_python() -> None:
    asked = ask_nccl(sys.executable)
    assert asked.version is not None or asked.why_not == "has a torch without NCCL"


def test_check_refuses_different_nccl_and_exits_with_1(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = document(tiny_folder, with_nccl(tmp_path, "theirs", "2.29.2"))
    own = with_nccl(tmp_path, "own", "2.27.5")
    monkeypatch.setattr(look_at_interpreters, "__defaults__", (own, 60.0))
    result = check(tmp_path, content)
    assert result.exit_code == 1
    assert "applications[0].args.policy.engine.sglang.python: its torch has NCCL 2.29.2" in result.output


def test_check_of_interpreters_that_are_elsewhere_is_notes_and_exits_with_0(tmp_path: Path, tiny_folder: Path) -> None:
    judge = {"kind": "sglang", "context_length": 1024, "device": "cpu", "sglang": {"python": "/no/judge"}}
    result = check(tmp_path, document(tiny_folder, "/no/such/python", judge__engine=judge))
    assert result.exit_code == 0, result.output
    for line in (
        "args.policy.engine.sglang.python: /no/such/python is not on this machine",
        "args.judge.engine.sglang.python: /no/judge is not on this machine",
        "args.publish.transport: the NCCL of both sides was not compared: /no/such/python cannot be run here",
    ):
        assert line in result.output


def test_one_interpreter_that_is_missing_twice_is_said_once(tiny_folder: Path) -> None:
    judge = {"kind": "sglang", "context_length": 1024, "device": "cpu", "sglang": {"python": "/no/such/python"}}
    args = document(tiny_folder, "/no/such/python", "gloo", judge__engine=judge)["applications"][0]["args"]
    (note,) = look_at_interpreters(Deployment.model_validate(args)).notes
    assert note.startswith("policy.engine.sglang.python, judge.engine.sglang.python: /no/such/python is not")


def test_a_name_that_is_looked_up_elsewhere_is_not_missing_here(tiny_folder: Path) -> None:
    assert look(tiny_folder, "some-python", sys.executable, transport="gloo") == Findings()
