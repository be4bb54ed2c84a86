"""Every command in the documentation is run here, or by a test that is named, or is said why it is not."""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx
import pytest
import ray.serve
import typer
import yaml
from ray.scripts.scripts import cli as ray_cli
from ray.serve.scripts import cli as serve_cli
from typer.testing import CliRunner
from wandb.cli.cli import cli as wandb_cli

from clawrl import cli
from clawrl.actors import ingress as module
from clawrl.check import check_file
from clawrl.config import read_deployment
from tests.docs_commands import (
    ACCOUNTS,
    ALL,
    MAKE,
    PAGES,
    ROOT,
    Command,
    Here,
    account,
    blocks,
    commands,
    of,
    without_comment,
)
from tests.fake_server import FakeState, fake_server
from tests.ingress_kit import Coordinator, Ingress, Replicas
from tests.test_ingress import says


def where(command: Command) -> str:
    return command.where


# -- the accounts themselves ------------------------------------------------------------------------------------------


def test_every_command_in_the_docs_is_accounted_for() -> None:
    unknown = [f"{command.where}: {command.text}" for command in ALL if account(command) is None]
    assert not unknown, f"add a line to ACCOUNTS in tests/docs_commands.py for: {unknown}"
    assert len(ALL) > 60 and {"README.md", "docs/quickstart.md"} <= {command.page for command in ALL}


def test_every_account_is_of_some_command_and_names_tests_that_exist_or_a_reason() -> None:
    for one in ACCOUNTS:
        assert any(account(command) is one for command in ALL), f"no command fits {one.pattern!r} any more; remove it"
        if one.here in (Here.SERVE, Here.RAY):
            assert one.tests, one.pattern
        if one.here is Here.NOT:
            assert one.tests or one.why, one.pattern
        for name in one.tests:
            assert exists(name), f"{one.pattern!r} is run by {name}, which is not there"
    for target, who in MAKE.items():
        assert who.startswith(("CI: ", "not run")) or exists(who), f"make {target} is run by {who}, which is not there"


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    return path.is_file() and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        for node in ast.parse(path.read_text()).body
    )


def test_a_command_that_nobody_knows_is_found_whatever_it_looks_like() -> None:
    text = "a\n```bash\nclawrl fly --high \\\n    --far   # a # comment\n\n# nothing\n```\n```yaml\nno: command\n```\n"
    (found,) = commands("page.md", text)
    assert (found.text, found.line, account(found)) == ("clawrl fly --high --far", 3, None)
    (inner,) = commands("page.md", "1. a\n\n   ```bash\n   rm -rf /\n   ```\n")
    assert inner.text == "rm -rf /" and account(inner) is None
    text = "```bash\nclawrl status\n```\nIt is `clawrl fly\n--high now`, not `pip could not`, `clawrl`, `fly on`.\n"
    fenced, within = commands("page.md", text)
    assert (within.text, within.line, within.inline) == ("clawrl fly --high now", 4, True)
    assert account(within) is None and not fenced.inline
    assert without_comment("echo '# no' a#b # yes") == "echo '# no' a#b"


@pytest.mark.parametrize("page", PAGES)
def test_shell_blocks_are_shell(page: str) -> None:
    text = "\n".join(blocks((ROOT / page).read_text()))
    result = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# -- run for real -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would stand: a clone, with files of their own beside it."""
    (tmp_path / "deployments").symlink_to(ROOT / "deployments")
    laptop = (ROOT / "deployments" / "laptop.yaml").read_text()
    for name, port in (("a", 8100), ("b", 8200)):
        mine = laptop.replace("port: 8000", f"port: {port}").replace("name: laptop", f"name: {name}")
        (tmp_path / f"{name}.yaml").write_text(mine)
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "rewards.py").write_text(
        "from clawrl.messages import Judgement, Verdict\n\n"
        "def polite(turn, evidence):\n"
        "    heard = ' '.join(message.content for message in evidence)\n"
        "    verdict = Verdict.GOOD if 'Thanks' in heard else None\n"
        "    return Judgement(turn_id=turn.turn_id, verdict=verdict, score=None, votes=(), judge='own', seconds=0.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CLAWRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAWRL_API_KEY", "a key")
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with fake_server(FakeState(turns=[{"turn_id": "t"}] * 9)) as url:
        yield url


@pytest.mark.parametrize("command", of(Here.CLI), ids=where)
def test_a_command_of_ours_does_what_it_is_there_for(
    command: Command, folder: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_look_is_enough(_: float) -> None:
        raise KeyboardInterrupt

    if "--watch" in command.text:
        monkeypatch.setattr(time, "sleep", one_look_is_enough)
    monkeypatch.setenv("CLAWRL_URL", server)
    _, *arguments = shlex.split(command.text)
    result = CliRunner().invoke(cli.app, arguments, input="hello\n/quit\n", catch_exceptions=False)
    assert result.exit_code == 0, result.output


SMALLER = {"bench.privacy": ["--turns", "20", "--history", "2", "--repeats", "1"]}


@pytest.mark.parametrize("command", of(Here.MODULE), ids=where)
def test_a_program_of_ours_prints_what_it_measures(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, name, *arguments = shlex.split(command.text)
    monkeypatch.setattr("sys.argv", [name, *arguments, *SMALLER.get(name, [])])
    importlib.import_module(name).main()
    assert len(capsys.readouterr().out.splitlines()) > 3


@pytest.mark.parametrize("command", of(Here.NAMED), ids=where)
def test_a_command_that_is_named_is_there_with_its_flags(command: Command) -> None:
    program, *words = command.text.split()
    flags = [word for word in words if word.startswith("--")]
    names = [word for word in words if word not in flags]
    if program == "make":
        assert names[0] in MAKE
        return
    found: click.Command = {
        "clawrl": typer.main.get_command(cli.app), "ray": ray_cli, "serve": serve_cli, "wandb": wandb_cli,
    }[program]  # fmt: skip
    for name in names:
        found = found.commands[name]  # type: ignore[attr-defined]
    assert not set(flags) - {option for parameter in found.params for option in parameter.opts}


@pytest.mark.parametrize("command", of(Here.CURL), ids=where)
def test_a_request_by_curl_is_answered_by_the_ingress(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listening(Coordinator):
        async def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
            known = {"feedback": {"turn_id": "t", "outcome": "taken", "state": "judging"}, "end_session": 1}
            return known.get(method, await super().ask(method, *arguments, timeout_s=timeout_s))

    laptop = read_deployment(ROOT / "deployments" / "laptop.yaml")
    ingress = Ingress(laptop, Replicas([says]), None)
    ingress._coordinator = Listening()
    monkeypatch.setattr(ray.serve, "get_replica_context", lambda: SimpleNamespace(servable_object=ingress))

    async def send() -> httpx.Response:
        asked = read_curl(command.text)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=module.api)) as client:
            return await client.send(client.build_request(**asked))

    answer = asyncio.run(send())
    assert answer.status_code == 200, answer.text
    assert answer.json()


def read_curl(text: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data")
    given = parser.parse_args(shlex.split(text)[1:])
    headers = dict(header.split(": ", 1) for header in given.headers)
    if given.data is not None:
        json.loads(given.data)
    method = given.method or ("GET" if given.data is None else "POST")
    return {"method": method, "url": given.url, "headers": headers, "content": given.data}


def test_make_knows_every_target_and_variable_and_somebody_runs_it() -> None:
    makefile, targets = (ROOT / "Makefile").read_text(), set()
    for command in of(Here.MAKE):
        for word in shlex.split(command.text)[1:]:
            variable, given, _ = word.partition("=")
            if given:
                assert re.search(rf"^{variable} \?=", makefile, re.MULTILINE), f"{command.where}: no {variable} is read"
            else:
                targets.add(word)
    # One that is only phony has nothing to do, which make calls a success.
    assert [target for target in targets if not re.search(rf"^{target}: ", makefile, re.MULTILINE)] == []
    assert targets == MAKE.keys(), "say in MAKE of tests/docs_commands.py who runs a target for real"
    result = subprocess.run(["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_make_lists_every_target_that_the_docs_name() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} >= MAKE.keys()


@pytest.mark.parametrize("command", of(Here.RAY), ids=where)
def test_ray_reads_the_arguments_that_the_docs_give_it(command: Command) -> None:
    program, name, *arguments = [argument for argument in shlex.split(command.text) if argument != "..."]
    {"ray": ray_cli, "serve": serve_cli}[program].commands[name].make_context(name, arguments)


@pytest.mark.parametrize("command", of(Here.SERVE), ids=where)
def test_the_file_that_is_served_passes_the_check(command: Command, folder: Path) -> None:
    (name,) = re.findall(r"serve run (\S+)", command.text)
    if name == "deployments/NAME.yaml":
        return
    assert list(check_file(Path(name)).problems) == []


@pytest.mark.parametrize("command", of(Here.EXPORT), ids=where)
def test_a_variable_that_is_set_is_read_by_somebody(command: Command) -> None:
    ours = "".join(path.read_text() for path in (ROOT / "clawrl").rglob("*.py"))
    # What Ray reads in C++ is set in the same way by the test that starts such a cluster.
    kit = (ROOT / "tests" / "fake_cluster.py").read_text()
    clients = "".join(path.read_text() for path in (ROOT / "tests" / "agents").glob("*.py"))
    dashboards = "".join(path.read_text() for path in (ROOT / "deployments" / "observability").rglob("*.yml"))
    package = Path(ray.__file__).parent
    rays = "".join(path.read_text() for path in (package / "serve" / "_private").rglob("constants.py"))
    for variable in re.findall(r"(\w+)=", command.text):
        assert any(variable in text for text in (ours, kit, clients, rays, dashboards)), variable


# -- what is not run by itself ----------------------------------------------------------------------------------------


def lines(page: str, *beginnings: str) -> list[str]:
    found = [c.text for c in ALL if c.page == page and c.text.startswith(beginnings)]
    assert len(found) >= len(beginnings)
    return found


def test_the_way_back_from_a_backup_is_as_the_page_says_it(tmp_path: Path) -> None:
    for folder in ("home/laptop", "backups/monday"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "ledger.sqlite").write_text(folder)
    script = "\n".join(lines("docs/operations-backup.md", "mv ", "cp "))
    assert script.startswith("mv ")
    script = script.replace("/backups/", f"{tmp_path}/backups/")
    environment = {**os.environ, "CLAWRL_HOME": str(tmp_path / "home")}
    subprocess.run(["bash", "-euc", script], env=environment, check=True)
    assert (tmp_path / "home" / "laptop" / "ledger.sqlite").read_text() == "backups/monday"
    assert (tmp_path / "home" / "laptop.before" / "ledger.sqlite").read_text() == "home/laptop"


def test_the_image_is_put_into_the_rayservice_as_the_page_says_it() -> None:
    (command,) = lines("docs/install.md", "sed ")
    command = command.removesuffix(" | kubectl apply -f -")
    result = subprocess.run(["bash", "-euc", command], cwd=ROOT, capture_output=True, text=True, check=True)
    (service,) = (d for d in yaml.safe_load_all(result.stdout) if d["kind"] == "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "registry.example.com/clawrl:0.1"


def test_the_constraints_without_torch_are_the_others_as_the_page_says_it(tmp_path: Path) -> None:
    (command,) = lines("docs/install.md", "grep ")
    subprocess.run(["bash", "-euc", re.sub(r"> \S+", f"> {tmp_path}/out", command)], cwd=ROOT, check=True)
    every = (ROOT / "constraints.txt").read_text().splitlines()
    left = (tmp_path / "out").read_text().splitlines()
    assert left == [line for line in every if not line.startswith("torch==")] and len(left) == len(every) - 1


def test_what_is_installed_by_hand_has_the_versions_and_extras_that_there_are() -> None:
    setup = (ROOT / "setup.cfg").read_text()
    page = (ROOT / "docs" / "install.md").read_text()
    for command in ALL:
        if "pip install" not in command.text:
            continue
        for extra in re.findall(r"\.\[([\w,]+)\]", command.text):
            assert all(re.search(rf"^{name} =$", setup, re.MULTILINE) for name in extra.split(",")), extra
        for name, version in re.findall(r"(\w+)==([\d.]+)", command.text):
            pins = re.search(rf"SGLang {re.escape(version)} pins|\| {name} \|[^|]*\| {re.escape(version)} \|", page)
            assert pins is not None, f"{name} {version} is not what the table of the page says"


def test_files_that_commands_name_are_there() -> None:
    named = {
        name
        for command in ALL
        for name in re.findall(r"(?:deployments|tests|bench|integrations)/[\w/.-]+", command.text)
    }
    assert named
    missing = [name for name in sorted(named - {"deployments/NAME.yaml"}) if not (ROOT / name).exists()]
    assert not missing
