"""The operator's commands as the documentation has them: on a server with a past, and on a deployment that has stopped.

The server is real but for Ray and the model behind it; the stopped deployment has a ledger, keys and weights on disk.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from clawrl import cli
from clawrl.messages import SamplingParams
from clawrl.privacy.opening import open_ledger
from clawrl.serving.auth import owner_of_user
from clawrl.weights import members as weights
from tests.docs_commands import Command, Here, of
from tests.export_kit import trained_deployment
from tests.ledger_kit import user
from tests.live import KEY
from tests.office import talk
from tests.operator_house import House, house
from tests.operator_kit import arriving, one, until, with_versions
from tests.privacy_kit import said
from tests.test_docs_commands import where

pytestmark = pytest.mark.timeout(120)
ANN = owner_of_user("ann")

SAYS = {
    "turns list": "greedy",
    "turns show": "<0><1><2><3>",
    "turns why": "awaiting_next",
    "sessions": "SESSION",
    "sessions show": "TURN",
    "versions": "kept",
    "rollback 12": "every replica serves it",
    "publish": "everything up to step 13",
    "export-turns turns.parquet": "2 turns are in turns.parquet",
    "export-turns sealed.jsonl": "turns are in sealed.jsonl",
    "export-turns turns.jsonl": "turns are in turns.jsonl",
    "open-turns": "turns are in turns.parquet",
    "import-turns": "played 1, answers 2",
    "forget": "1 turn",
    "backup": "no checkpoint yet, version 1",
    "export": "version 1 (step 2) is in my-model",
    "calibrate": "accuracy",
}
"""What is read by whoever types it; by the longest beginning that fits."""


def type_in(command: Command) -> str:
    """Its output, after the shell has put in what it puts in."""
    shell = subprocess.run(
        ["bash", "-euc", f"printf '%s\\0' {command.text}"], capture_output=True, text=True, check=True
    )
    _, *arguments = shell.stdout.split("\0")[:-1]
    result = CliRunner().invoke(cli.app, arguments, input="y\n", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def expected(command: Command) -> str:
    typed = command.text.removeprefix("clawrl ")
    return SAYS[max((begin for begin in SAYS if f"{typed} ".startswith(f"{begin} ")), key=len)]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 220, raising=False)


# -- a server ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with pytest.MonkeyPatch.context() as patch, house(tmp_path_factory.mktemp("house") / "state", patch) as made:
        made.do(a_past(made))
        yield made


async def a_past(home: House) -> None:
    """Versions that are kept, two turns that trained, and somebody in every conversation that the docs name."""
    coordinator = home.coordinator
    await with_versions(coordinator, home.deployment.state_path, 13)
    await talk(coordinator, 3)
    await until(coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)
    lease = await coordinator.lease("run", 14, 5.0)
    assert lease is not None and await coordinator.confirm(lease.lease_id, "run")
    assert await coordinator.applied(lease.lease_id, "run", {"loss": 0.5})
    await coordinator.checkpointed("run", 14)
    for name, session in (("TURN", "SESSION"), ("0123abcd", "another"), ("h", "harbour"), ("g", "greedily")):
        sampling = SamplingParams(temperature=0.0 if name == "g" else 1.0)
        await coordinator.record(one(name, f"answer of {name}", session=session, sampling=sampling))
    await coordinator.record(arriving(one("a", "answer to ann", session="hers"), owner=ANN))
    home.replica = asyncio.create_task(replica(home))  # type: ignore[attr-defined]


async def replica(home: House) -> None:
    held = 13
    while True:
        order = await home.coordinator.poll("r", held, {"serving": True}, 0.1)
        if order is not None:
            if isinstance(order.command, weights.CatchUp):
                held = order.command.version.version
            await home.coordinator.report("r", order.number, held, weights.Outcome(ok=True))


# Last what leaves a server waiting for its trainer, which is not there.
ON_A_SERVER = sorted(of(Here.HOUSE), key=lambda command: "rollback" in command.text)


@pytest.mark.parametrize("command", ON_A_SERVER, ids=where)
def test_a_command_of_the_docs_does_on_a_server_what_it_is_there_for(
    command: Command, home: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Whoever imports brings a file along.
    asked = ("What is rain?", "Shorter, please.")
    messages = [m for text in asked for m in ({"role": "user", "content": text}, {"role": "assistant", "content": "?"})]
    (tmp_path / "talks.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    assert expected(command) in type_in(command)
    if file := re.search(r"export-turns (\S+)", command.text):
        assert (tmp_path / file[1]).stat().st_size > 0


# -- a deployment that has stopped ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a reader stands: its deployments/laptop.yaml is a small one, with versions and turns."""
    folder = tmp_path_factory.mktemp("stopped")
    trained = trained_deployment(folder, versions=2)
    settings = yaml.safe_load(trained.file.read_text())
    # The judge of a random model is as good as random; calibrating it must not want a key.
    settings["applications"][0]["args"]["serving"]["api_key"] = None
    (folder / "deployments").mkdir()
    (folder / "deployments" / "laptop.yaml").write_text(yaml.safe_dump(settings))
    deployment = trained.deployment
    with open_ledger(deployment.state_path, deployment.ledger, deployment.privacy) as ledger:
        for number, owner in enumerate((ANN, "bob", "eve")):
            ledger.record(said(f"t{number}", user("where?"), f"there {number}", session=f"s{number}", owner=owner))
    return folder


@pytest.mark.parametrize("command", of(Here.STOPPED), ids=where)
def test_a_command_of_the_docs_does_on_a_stopped_deployment_what_it_is_there_for(
    command: Command, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWRL_TEST_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deployments").symlink_to(stopped / "deployments")
    case = {"request": "hello", "response": "hi", "evidence": "thanks, that is good", "label": 1}
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case | {"label": label}) + "\n" for label in (1, -1)))
    if "open-turns" in command.text:
        sealed = ("export-turns", "sealed.jsonl", "--sealed", "--deployment", "deployments/laptop.yaml")
        assert CliRunner().invoke(cli.app, list(sealed)).exit_code == 0
    (tmp_path / "backups").mkdir()
    here = replace(command, text=command.text.replace("/backups/", f"{tmp_path}/backups/"))
    output = type_in(here)
    assert expected(command) in output, output
