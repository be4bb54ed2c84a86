"""The operator's commands against a server that is real but for Ray and the model behind it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from clawrl import cli
from clawrl.client import ApiClient, ApiProblem
from clawrl.messages import Message
from clawrl.weights import members as weights
from tests.cli_kit import run
from tests.live import KEY
from tests.office import talk, turn
from tests.operator_house import House
from tests.operator_kit import kept_version, one, until, with_versions


@pytest.fixture
def home(home: House, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(cli.console, "_width", 220, raising=False)
    return home


def said(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def shown(*arguments: str) -> Any:
    return json.loads(said(*arguments, "--json"))


async def a_life(home: House) -> None:
    await with_versions(home.coordinator, home.deployment.state_path, 3)
    await talk(home.coordinator, 3)
    await home.coordinator.record(one("greedy", reply=" "))
    await until(home.coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)


def test_turns_are_listed_narrowed_shown_and_explained(home: House) -> None:
    home.do(a_life(home))
    listed = said("turns", "list")
    assert "s-2" in listed and "awaiting_next" in listed and "empty" in listed
    assert [row["turn_id"] for row in shown("turns", "list", "--session", "s")] == ["greedy", "s-2", "s-1", "s-0"]
    assert [row["turn_id"] for row in shown("turns", "list", "--reason", "empty")] == ["greedy"]
    first = shown("turns", "list", "--limit", "2")
    assert f"--before {first[-1]['seq']}" in said("turns", "list", "--limit", "2")
    rest = shown("turns", "list", "--before", str(first[-1]["seq"]))
    assert [row["turn_id"] for row in (*first, *rest)] == ["greedy", "s-2", "s-1", "s-0"]

    life = said("turns", "show", "s-0")
    # The answer is shown token by token, as a replica spelt it.
    for piece in ("hello s", "<0><1><2><3>", "user (after it)> ok", "judge fake", "number 1 of 2 in the queue"):
        assert piece in life, piece
    assert "colours show the advantage: reward 1" in life
    assert [token["piece"] for token in shown("turns", "show", "s-0")["tokens"]] == ["<0>", "<1>", "<2>", "<3>"]

    assert "dropped (empty): Its 4 tokens hold no word" in said("turns", "why", "greedy")
    assert shown("turns", "why", "greedy")["why"]["remedy"].startswith("If many are empty")


def test_half_a_character_that_a_model_wrote_is_shown_and_not_an_error(home: House) -> None:
    half = replace(turn("half", [Message(role="user", content="hello")], "hm"), response_text="broken \ud83d")
    home.do(home.coordinator.record(half))
    assert shown("turns", "show", "half")["response_text"] == "broken \ud83d"


@pytest.mark.parametrize("name", ["..", ".", "a/../b", "a b/?&#", "done"])
def test_a_session_of_any_name_is_shown_and_ended(home: House, name: str) -> None:
    asked = {"model": home.deployment.serving.served_name, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {KEY}", "X-Session-Id": name}
    assert httpx.post(f"{home.url}/v1/chat/completions", json=asked, headers=headers).status_code == 200
    (turn,) = shown("sessions", "show", name)["turns"]
    assert turn["session"] == name and turn["state"] == "awaiting_next"
    with ApiClient(home.url, KEY) as client:
        assert client.end_session(name) == {"session": name, "ended_turns": 1}
    assert shown("sessions", "show", name)["turns"][0]["state"] == "dropped"
    for method, path in (("GET", "session"), ("POST", "session/done"), ("GET", "session?session=")):
        refused = httpx.request(method, f"{home.url}/clawrl/{path}", headers=headers)
        assert refused.status_code == 400 and "?session=NAME" in refused.text


def test_sessions_and_versions_are_shown(home: House) -> None:
    home.do(a_life(home))
    assert [row["session"] for row in shown("sessions", "list")] == ["s"]
    assert "awaiting_next 1" in said("sessions", "list")
    document = shown("sessions", "show", "s")
    assert len(document["of"]) == 1 and len(document["turns"]) == 4
    assert "s-1" in said("sessions", "show", "s")
    assert [row["version"] for row in shown("versions")] == [3, 2, 1, 0]
    table = said("versions")
    assert "serves" in table and "kept" in table


def test_rollback_waits_until_every_replica_serves_and_publish_says_what_there_is(home: House) -> None:
    async def replica() -> None:
        held = 3
        while True:
            order = await home.coordinator.poll("r", held, {"serving": True}, 0.1)
            if order is not None:
                if isinstance(order.command, weights.CatchUp):
                    held = order.command.version.version
                await home.coordinator.report("r", order.number, held, weights.Outcome(ok=True))

    async def begin() -> None:
        import asyncio

        home.replica = asyncio.create_task(replica())  # type: ignore[attr-defined]

    home.do(a_life(home))
    assert "nothing is new: version 3 has everything up to step 3" in said("publish")
    home.do(begin())
    output = said("rollback", "1")
    assert "version 4 has the weights of version 1 (step 1)" in output and "every replica serves it" in output
    assert "rolled back to 1 from 3" in said("versions")
    again = shown("rollback", "2", "--wait", "20")
    assert (again["version"], again["everywhere"]) == (5, True)


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["told", "json"])
def test_a_rollback_that_is_done_is_told_also_where_nobody_can_be_asked_who_serves_it(
    home: House, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    home.do(a_life(home))

    def away(self: ApiClient) -> None:
        raise ApiProblem("the coordinator is restarting")

    monkeypatch.setattr(ApiClient, "status", away)
    result = run("rollback", "1", *more)
    assert result.exit_code == 1 and "the rollback is done, but" in result.stderr
    assert "the coordinator is restarting" in result.stderr and result.stderr.count("\n") == 1
    if more:
        assert json.loads(result.stdout) | {"step": 1} == json.loads(result.stdout)
        assert json.loads(result.stdout)["everywhere"] is False
    else:
        assert "version 4 has the weights of version 1 (step 1)" in result.stdout
    monkeypatch.undo()
    assert home.do(home.coordinator.operator("versions", None, 1))[0]["version"] == 4


def test_sessions_and_turns_are_listed_where_nothing_else_is_said(home: House) -> None:
    home.do(a_life(home))
    for group in ("sessions", "turns"):
        assert said(group) == said(group, "list")
        assert shown(group) == shown(group, "list")
        assert len(shown(group, "--limit", "1")) == 1
        assert "show" in said(group, "--help") and "--limit" not in said(group, "--help")
        # Its options belong to the list, and are not dropped before another command.
        assert run(group, "--json", "show", "s").exit_code == 2
    assert [row["turn_id"] for row in shown("turns", "--reason", "empty")] == ["greedy"]


def test_nothing_is_deleted_for_a_program_that_does_not_say_that_it_is_meant(home: House) -> None:
    home.do(a_life(home))
    result = run("forget", "--session", "s", "--json")
    assert result.exit_code == 1 and "add --yes" in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == "" and len(shown("turns")) == 4
    refused = run("forget", "--session", "s", text="n\n")
    assert refused.exit_code == 1 and len(shown("turns")) == 4
    assert shown("forget", "--session", "s", "--yes")["turns"] == 4


def test_a_reason_for_a_pause_is_short(home: House) -> None:
    assert run("pause", "--reason", "x" * 500).exit_code == 0
    result = run("pause", "--reason", "y" * 501)
    assert result.exit_code == 1 and "reason must be 500 characters or fewer; this one has 501" in result.stderr
    paused = home.do(home.coordinator._db.run(lambda ledger: ledger.paused()))
    assert paused.reason == "x" * 500


@pytest.mark.parametrize(
    "written",
    ["0" * 17 + "9" * 25, "0" * 5000 + "1", "9" * 5000, str(2**53 + 1)],
    ids=["behind zeros", "zeros", "nines", "one more"],
)
@pytest.mark.parametrize(
    "path", ["turns?before=", "turns?version=", "turns?step=", "sessions?before=", "steps?before="]
)
def test_a_number_of_any_length_is_read_or_refused(home: House, path: str, written: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.get(f"{home.url}/clawrl/{path}{written}", headers=headers, trust_env=False)
    assert answer.status_code == (200 if int(written[-20:]) == 1 else 400), answer.text
    if answer.status_code == 400:
        assert "must be a whole number from 0 to 9007199254740992" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["turns", "show", "gone"], "No turn 'gone' is known here"),
        (["turns", "why", "gone"], "ledger.keep_finished_turns"),
        (["turns", "list", "--state", "asleep"], "state must be one of served, awaiting_next"),
        (["sessions", "show", "nowhere/at all"], "No turn of a session 'nowhere/at all' is known here"),
        (
            ["rollback", "99"],
            "Version 99 cannot be rolled back to: its weights are not kept, or never were. Kept are",
        ),
    ],
    ids=["show", "why", "list", "session", "rollback"],
)
def test_what_is_refused_is_one_line_and_exit_code_1(home: House, command: list[str], line: str) -> None:
    home.do(with_versions(home.coordinator, home.deployment.state_path, 0))
    result = run(*command)
    assert result.exit_code == 1
    assert line in result.output and result.output.count("\n") == 1, result.output


@pytest.mark.parametrize(
    "command",
    [
        ["turns", "list"],
        ["turns", "show", "t"],
        ["turns", "why", "t"],
        ["sessions", "list"],
        ["sessions", "show", "s"],
        ["versions"],
        ["rollback", "0"],
        ["publish"],
        ["export-turns", "turns.jsonl"],
    ],
    ids=" ".join,
)
def test_without_a_server_each_command_is_one_line_and_exit_code_1(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*command, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1 and "no server answers" in result.output and result.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_whoever_has_no_key_sees_none_of_it(home: House) -> None:
    for command in (["turns", "list"], ["turns", "show", "t"], ["versions"], ["rollback", "0"], ["publish"]):
        result = run(*command, "--api-key", "wrong")
        assert result.exit_code == 1 and "wants a valid key" in result.output


def test_a_version_that_is_kept_is_looked_for_on_disk(home: House) -> None:
    home.do(a_life(home))
    (Path(kept_version(2, home.deployment.state_path).snapshot) / "manifest.json").unlink()
    assert [row["version"] for row in shown("versions") if not row["kept"]] == [2]
