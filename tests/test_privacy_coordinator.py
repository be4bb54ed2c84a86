"""Privacy in a whole coordinator, and through the command line: what lies on its disk while it works and afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from clawrl.actors.journal_keys import JournalKeys
from clawrl.cli import app
from clawrl.config import Deployment, read_deployment
from clawrl.ledger.codec import Codec
from clawrl.ledger.journal import Journal
from clawrl.ledger.looking import TurnFilter
from clawrl.messages import FinishReason, Message, SamplingParams, TurnId
from clawrl.privacy.forgetting import Wanted
from clawrl.privacy.keys import JOURNAL, StoredKeys
from clawrl.privacy.opening import open_keys, open_ledger
from clawrl.privacy.vault import SealingVault
from clawrl.serving.auth import owner_of_user
from clawrl.serving.config import UserConfig
from clawrl.serving.forgetting import parse_forget
from tests.live import tiny_deployment
from tests.office import Office, talk, turn, until
from tests.privacy_kit import IDS, PRIVATE_RULES, found_in

MAIL = "ann.archer@example.com"


def test_a_conversation_is_judged_and_queued_and_no_word_of_it_is_on_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state").open()
        await talk(coordinator, 3)
        await until(coordinator, lambda status: status["turns"]["by_state"].get("queued") == 2)
        assert found_in(tmp_path, "hello s") == found_in(tmp_path, "answer 1") == []
        await coordinator.close()
        assert found_in(tmp_path, "hello s") == found_in(tmp_path, "answer 1") == []
        assert not list((tmp_path / "state").glob("*.key"))

    asyncio.run(run())


def test_a_redacted_turn_is_dropped_and_the_rest_of_the_conversation_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state", privacy=PRIVATE_RULES).open()
        await coordinator.record(turn("a", [Message(role="user", content=f"I am {MAIL}")], "hello"))
        status = await until(coordinator, lambda status: status["turns"]["recorded"] == 1)
        assert status["turns"]["dropped"] == {"redacted": 1} and status["turns"]["adds_up"]
        assert found_in(tmp_path, MAIL) == []
        await coordinator.close()

    asyncio.run(run())


def test_forgetting_while_it_runs_reaches_the_journals_of_dead_replicas_and_the_counts_add_up(tmp_path: Path) -> None:
    async def run() -> None:
        office = Office(tmp_path / "state")
        coordinator = office.open()
        await talk(coordinator, 3)
        found = await coordinator.journal_keys("")
        assert found is not None and await coordinator.journal_keys(found[0]) is None
        keys = JournalKeys(coordinator=None)  # type: ignore[arg-type]
        keys.lent.lend(found[1])
        journal = Journal(
            tmp_path / "state" / "journal" / "dead.journal", Codec(SealingVault(keys.lent)), limit_bytes=100_000
        )
        late = turn("late", [Message(role="user", content="the blue anchor")], "an inn", session="s")
        journal.append(late)
        journal.close()
        report = await coordinator.forget(Wanted(owner="o"))
        assert (report["turns"], report["keys_deleted"], report["log_emptied"]) == (4, 1, True)
        status = await coordinator.status()
        assert status["turns"]["adds_up"] and status["turns"]["recorded"] == 4
        assert status["turns"]["dropped"] == {"forgotten": 4}
        assert await coordinator.answered(TurnId("s-0"), "o") is None
        assert not list((tmp_path / "state" / "journal").iterdir())
        renewed = await coordinator.journal_keys(found[0])
        assert renewed is not None and renewed[1].get("o") != found[1]["o"]
        await coordinator.close()

    asyncio.run(run())


def test_text_goes_after_its_retention_time(tmp_path: Path) -> None:
    async def run() -> None:
        settings = {"encrypt": False, "retention_days": 1e-6}
        coordinator = Office(tmp_path / "state", privacy=settings).open()
        old = turn("a", [Message(role="user", content="the blue anchor")], "an inn", finish_reason=FinishReason.ABORTED)
        await coordinator.record(old)
        async with asyncio.timeout(120):
            while found_in(tmp_path, "the blue anchor"):
                coordinator._retained_at = 0.0
                await asyncio.sleep(0.05)
        status = await coordinator.status()
        assert status["turns"]["dropped"] == {"aborted": 1} and status["turns"]["adds_up"]
        await coordinator.close()

    asyncio.run(run())


def test_a_turn_of_which_nothing_was_kept_cannot_be_gone_on_from(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state", privacy={"record_untrainable": False}).open()
        asked = turn("a", [Message(role="user", content="hi")], "hello")
        arrival = replace(asked.arrival, may_train=False, train_wish=False)
        await coordinator.record(replace(asked, arrival=arrival))
        assert await coordinator.answered(TurnId("a"), "o") is None
        await coordinator.close()

    asyncio.run(run())


def test_the_body_of_a_request_to_forget_names_users_as_the_config_does() -> None:
    assert parse_forget({"user": "ann"}) == Wanted(owner=owner_of_user("ann"))
    assert parse_forget({"user": owner_of_user("ann"), "session": "s"}) == Wanted(
        owner=owner_of_user("ann"), session="s"
    )
    assert parse_forget({"user": "local"}) == Wanted(owner="local")
    assert parse_forget({"turn_id": "t"}) == Wanted(turn_id=TurnId("t"))


def a_stopped_deployment(tmp_path: Path, **privacy: object) -> tuple[Path, Path]:
    """Its file and its state folder, with a conversation."""
    state = tmp_path / "state"
    document = tiny_deployment(tmp_path, 1, state_dir=str(state), privacy=privacy)
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(document))

    async def run() -> None:
        coordinator = Office(state, privacy=privacy).open()
        await talk(coordinator, 2)
        await coordinator.close()

    asyncio.run(run())
    return file, state


def test_the_command_forgets_in_a_stopped_deployment(tmp_path: Path) -> None:
    file, _ = a_stopped_deployment(tmp_path)
    named = ["forget", "--session", "s", "--deployment", str(file)]
    assert CliRunner().invoke(app, named, input="n\n").exit_code == 1, "it asks first"
    done = CliRunner().invoke(app, [*named, "--json", "--yes"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["turns"] == 2 and report["steps"] == []
    again = CliRunner().invoke(app, [*named, "--yes"])
    assert again.exit_code == 1 and "nothing of that here" in again.output


@pytest.mark.parametrize("encrypt", [True, False], ids=["sealed", "plain"])
def test_the_command_takes_in_the_journals_that_lie_there(tmp_path: Path, encrypt: bool) -> None:
    file, state = a_stopped_deployment(tmp_path, encrypt=encrypt)
    deployment = read_deployment(file)
    vault = SealingVault(StoredKeys.of(open_keys(state, deployment.privacy), JOURNAL), encrypts=encrypt)
    journal = Journal(state / "journal" / "dead.journal", Codec(vault), limit_bytes=100_000)
    greedy = SamplingParams(temperature=0.0)
    journal.append(turn("late", [Message(role="user", content="the blue anchor")], "an inn", session="s"))
    journal.append(turn("other", [Message(role="user", content="hi")], "hello", session="t", sampling=greedy))
    named = ["forget", "--session", "s", "--deployment", str(file), "--json", "--yes"]
    held = CliRunner().invoke(app, named)
    assert held.exit_code == 1 and "could not be taken in" in held.output, "its replica still lives"
    journal.close()
    done = CliRunner().invoke(app, named)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["turns"] == 3
    assert found_in(state, "the blue anchor") == [] and not list((state / "journal").iterdir())
    with open_ledger(state, deployment.ledger, deployment.privacy) as ledger:
        assert {row.turn_id: row.drop_reason for row in ledger.turns()}["other"] == "greedy", "as ever"


def test_a_session_whose_name_was_redacted_is_found_by_that_name(tmp_path: Path) -> None:
    async def run() -> None:
        coordinator = Office(tmp_path / "state", privacy=PRIVATE_RULES).open()
        for owner, count in (("o", 3), ("p", 2)):
            for number in range(count):
                asked = turn(f"{owner}{number}", [Message(role="user", content=f"{number}")], "hello", session=MAIL)
                await coordinator.record(replace(asked, arrival=replace(asked.arrival, owner=owner)))
        await talk(coordinator, 2)
        found = await coordinator.operator("turns", TurnFilter(session=MAIL), None, 100)
        assert [row["turn_id"] for row in found] == ["p1", "p0", "o2", "o1", "o0"]
        paged = [await coordinator.operator("turns", TurnFilter(session=MAIL), None, 2)]
        while paged[-1]:
            paged.append(await coordinator.operator("turns", TurnFilter(session=MAIL), paged[-1][-1]["seq"], 2))
        assert [row["turn_id"] for page in paged for row in page] == ["p1", "p0", "o2", "o1", "o0"]
        hers = await coordinator.operator("turns", TurnFilter(session=MAIL, owner="p"), None, 100)
        assert [row["turn_id"] for row in hers] == ["p1", "p0"]
        shown = await coordinator.operator("session", MAIL, None, 100)
        assert sorted(row["owner"] for row in shown["of"]) == ["o", "p"] and len(shown["turns"]) == 5
        report = await coordinator.forget(Wanted(session=MAIL))
        assert report["found"] and report["turns"] == 5
        assert await coordinator.operator("turns", TurnFilter(session=MAIL), None, 100) == []
        assert found_in(tmp_path, MAIL) == []
        await coordinator.close()

    asyncio.run(run())


def test_the_command_does_not_touch_a_running_deployment(tmp_path: Path) -> None:
    file, state = a_stopped_deployment(tmp_path)

    async def run() -> None:
        coordinator = Office(state).open()
        refused = await asyncio.to_thread(
            CliRunner().invoke, app, ["forget", "--session", "s", "--yes", "--deployment", str(file)]
        )
        assert refused.exit_code == 1 and "in use" in refused.output and "--url" in refused.output
        await coordinator.close()

    asyncio.run(run())


@pytest.mark.parametrize("arguments", [[], ["--turn", "t", "--user", "ann"]], ids=["nothing", "too much"])
def test_the_command_wants_to_know_what(arguments: list[str]) -> None:
    refused = CliRunner().invoke(app, ["forget", "--yes", *arguments])
    assert refused.exit_code == 1 and "name what is to be forgotten" in refused.output


def test_keys_that_are_not_to_be_had_are_a_problem_of_the_file(tmp_path: Path) -> None:
    args = tiny_deployment(tmp_path, 1, state_dir=str(tmp_path / "s"), privacy={"master_key": "env:NOT_SET"})
    problems = Deployment.model_validate(args["applications"][0]["args"]).problems()
    assert any(
        problem.startswith("privacy.master_key: NOT_SET") or "privacy.master_key" in problem for problem in problems
    )


@pytest.mark.parametrize("name", ["0123456789abcdef", "local", " ann"])
def test_a_user_whose_name_reads_as_an_owner_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="could ask to forget this user by it"):
        UserConfig(name=name, key="k")
    assert UserConfig(name="0123456789abcdeg", key="k").name


def test_ids_are_searched_for_too(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"..." + b"".join(i.to_bytes(4, "little") for i in IDS))
    assert found_in(tmp_path, "nothing", IDS) != [] and time.time() > 0
