"""Turns to a file and conversations from one: what is in it, who can load it, what a replay sends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from clawrl import cli
from clawrl.export_turns import COLUMNS, ExportTurnsError, write
from clawrl.import_turns import Conversation, ImportTurnsError, Pacer, playable, read_conversations
from clawrl.inspection.exported import export_row
from clawrl.ledger.folder import hold
from clawrl.ledger.looking import TurnFilter
from clawrl.ledger.store import Ledger
from clawrl.messages import ToolCall, Turn, TurnState
from clawrl.serving import errors
from tests.ledger_kit import open_ledger, queue, say, user
from tests.live import MODEL, free_port, tiny_deployment
from tests.office import talk
from tests.operator_house import House, house
from tests.operator_kit import until

pytestmark = pytest.mark.timeout(120)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with house(tmp_path / "state", monkeypatch) as made:
        yield made


async def talked(home: House) -> None:
    await talk(home.coordinator, 3)
    await until(home.coordinator, lambda s: s["turns"]["by_state"].get("queued") == 2)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line]


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
    from clawrl.config import read_deployment

    file = a_deployment(tmp_path)
    result = run("export-turns", str(tmp_path / "a.parquet"), "--deployment", str(file))
    assert result.exit_code == 1 and "holds no ledger" in result.output
    deployment = read_deployment(file)
    with Ledger(deployment.state_path / "ledger.sqlite", deployment.ledger) as ledger:
        queue(ledger, "a", "b")
        say(ledger, "c", user("half a character: \ud83d"), "hm")
    held = hold(deployment.state_path, "tiny")
    result = run("export-turns", str(tmp_path / "a.parquet"), "--deployment", str(file))
    assert result.exit_code == 1 and "is running" in result.output and "--url" in result.output
    held.release()
    for name in ("a.parquet", "a.jsonl"):
        result = run("export-turns", str(tmp_path / name), "--deployment", str(file))
        assert result.exit_code == 0, result.output
    rows = loaded(tmp_path / "a.parquet", tmp_path / "cache")
    assert [row["turn_id"] for row in rows] == ["c", "b", "a"] and rows[2]["hints"] == ["be brief"]
    assert rows[0]["messages"][0]["content"] == "half a character: ?"
    assert lines(tmp_path / "a.jsonl")[0]["messages"][0]["content"].endswith("\ud83d"), "JSON can say it"


def test_an_export_never_takes_the_place_of_a_file_and_names_its_forms(tmp_path: Path) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    for target, line in ((there, "is not overwritten"), (tmp_path / "turns.csv", "must end in .jsonl or .parquet")):
        with pytest.raises(ExportTurnsError, match=line):
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


# Replaying.

TALKS = [
    {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "one"},
                  {"role": "assistant", "content": "recorded one"}, {"role": "user", "content": "two"},
                  {"role": "assistant", "content": "recorded two", "weight": 1},
                  {"role": "user", "content": "thanks"}]},
    {"messages": [{"role": "user", "content": "alone"}, {"role": "assistant", "content": "recorded alone"}]},
]  # fmt: skip


def written(folder: Path, rows: list[Any]) -> Path:
    file = folder / "talks.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return file


def replay(file: Path, *more: str) -> Any:
    fast = ("--per-minute", "60000", "--parallel", "1")
    result = run("import-turns", str(file), *fast, "--model", MODEL, "--json", *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def exported(home: House, session: str) -> list[dict[str, Any]]:
    return list(reversed(home.do(home.coordinator.operator("export", TurnFilter(session=session), None, 50))["rows"]))


def sessions(home: House) -> list[str]:
    rows = home.do(home.coordinator.operator("sessions", None, 50))
    return sorted(row["session"] for row in rows)


def test_a_replay_lets_the_policy_answer_and_what_people_said_next_is_the_evidence(home: House, tmp_path: Path) -> None:
    summary = replay(written(tmp_path, TALKS))
    assert (summary["played"], summary["answers"], summary["failed"]) == (2, 4, 0)
    by_length = sorted((exported(home, session) for session in sessions(home)), key=len)
    (alone,), whole = by_length
    assert alone["drop_reason"] == "session_ended" and alone["messages"][-1]["content"] == "alone"
    assert [turn["messages"][-1]["content"] for turn in whole] == ["one", "two", "thanks"]
    first, second, last = whole
    assert first["evidence"][0]["content"] == "two" and second["evidence"][0]["content"] == "thanks"
    assert last["drop_reason"] == "session_ended"
    said = json.dumps(whole)
    assert "recorded" not in said, "no word of the file's assistant is in what trains"
    # The policy's own answer is what the conversation went on from.
    assert second["messages"][2]["content"] == first["answer"][0]["content"]


def test_with_the_recorded_history_only_the_very_same_answer_gets_the_reaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(task: Any) -> str:
        return "recorded one" if task.arrival.messages[-1].content == "one" else "something else"

    with house(tmp_path / "state", monkeypatch, says) as home:
        replay(written(tmp_path, TALKS[:1]), "--history", "recorded")
        (session,) = sessions(home)
        first, second, last = exported(home, session)
        assert second["messages"][2]["content"] == "recorded one" and last["messages"][4]["content"] == "recorded two"
        assert first["evidence"][0]["content"] == "two"
        assert second["evidence"] == [] and second["drop_reason"] == "session_ended"


def test_side_turns_are_answered_and_never_train(home: House, tmp_path: Path) -> None:
    replay(written(tmp_path, TALKS), "--side")
    rows = [row for session in sessions(home) for row in exported(home, session)]
    assert len(rows) == 4 and {row["drop_reason"] for row in rows} == {"side"}


def test_names_of_imported_sessions_say_nothing_of_what_was_said_and_are_noted(home: House, tmp_path: Path) -> None:
    file = written(tmp_path, TALKS)
    replay(file, "--side")
    noted = [json.loads(line) for line in Path(f"{file}.imported").read_text().splitlines() if line]
    names = sessions(home)
    assert sorted(entry["session"] for entry in noted) == names and len(names) == 2
    assert not any(entry["digest"] in name for entry in noted for name in names)
    Path(f"{file}.imported").unlink()
    replay(file, "--side")
    assert len(set(sessions(home))) == 4, "the same conversation again has another name"


def test_an_import_that_broke_off_goes_on_where_it_was(home: House, tmp_path: Path) -> None:
    file = written(tmp_path, TALKS)
    # Not worth another attempt: it is told, and the other conversation goes on.
    home.refusals.append(errors.invalid_request("too strange", "messages"))
    result = run("import-turns", str(file), "--per-minute", "60000", "--parallel", "1", "--json")
    assert result.exit_code == 1 and "1 conversations broke off" in result.output and "too strange" in result.output
    noted = lines(tmp_path / "talks.jsonl.imported")
    assert [entry["number"] for entry in noted] == [1]
    (tmp_path / "talks.jsonl.imported").open("a").write('{"number": 0, "dig')
    summary = replay(file)
    assert (summary["done_before"], summary["played"]) == (1, 1)
    assert replay(file)["played"] == 0
    changed = [{"messages": [*TALKS[1]["messages"][:1], {"role": "user", "content": "more"}]}]
    assert replay(written(tmp_path, [TALKS[0], *changed]))["played"] == 1, "another conversation in its place"


def test_a_server_that_is_full_is_asked_again_when_it_says(
    home: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("clawrl.import_turns.time.sleep", slept.append)
    from clawrl.import_turns import Options, Replay
    from tests.live import KEY

    home.refusals.append(errors.overloaded(3.0))
    replaying = Replay(home.url, KEY, Options(per_minute=60000), "x", sleep=slept.append)
    played = replaying.play(Conversation(number=0, messages=tuple(TALKS[1]["messages"])))
    replaying.close()
    assert (played.answers, played.problem) == (1, "") and 3.0 in slept


def test_an_export_is_replayed_session_by_session(home: House, tmp_path: Path) -> None:
    home.do(talked(home))
    for name in ("turns.jsonl", "turns.parquet"):
        assert run("export-turns", str(tmp_path / name)).exit_code == 0
        (talk_again,) = read_conversations(tmp_path / name)
        users = [message["content"] for message in talk_again.messages if message["role"] == "user"]
        assert users == ["hello s", "ok", "ok"] and talk_again.messages[-1]["content"] == "answer 2"
    assert replay(tmp_path / "turns.parquet")["answers"] == 3


def test_with_its_own_answers_a_conversation_ends_at_its_first_tool_call() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    said = [{"role": "user", "content": "look"}, call, {"role": "tool", "content": "rain", "tool_call_id": "c"}]
    assert playable(said, "own") == (said[:2], 1)
    assert playable(said, "recorded") == (said, 0)
    assert playable(said[:1], "own") == (said[:1], 0)


def test_tool_calls_survive_an_export() -> None:
    from clawrl.import_turns import _of_row
    from clawrl.inspection.exported import exported_messages
    from clawrl.messages import Message

    call = ToolCall(id="c", name="look", arguments='{"at": "sky"}')
    said = [Message(role="assistant", tool_calls=(call,)), Message(role="tool", content="rain", tool_call_id="c")]
    again = [_of_row(row) for row in exported_messages(said)]
    assert again[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "sky"}'}
    assert again[1] == {"role": "tool", "content": "rain", "tool_call_id": "c"}


HI = '{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "holds no conversation"),
        ("{", "line 1: this is not JSON"),
        ('{"messages": []}', "line 1: a conversation is"),
        ("[1]\n", "line 1: a conversation is an object"),
        (HI + '\n\n{"messages": [{"role": "ghost"}]}', r"line 3: messages\[0\]"),
        ('{"messages": [{"role": "user", "content": 3}]}', "must be a text"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no message of a user"),
    ],
    ids=["empty", "broken", "no messages", "a list", "a role", "a number", "nobody asks"],
)
def test_a_file_that_cannot_be_replayed_is_one_line_and_nothing_is_sent(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(text)
    with pytest.raises(ImportTurnsError, match=line):
        read_conversations(file)
    result = run("import-turns", str(file), "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1 and result.output.count("\n") == 1


def test_requests_leave_at_the_rate_that_is_asked_for() -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pacer = Pacer(120.0, clock=lambda: now[0], sleep=sleep)
    left = []
    for _ in range(5):
        pacer.wait()
        left.append(now[0])
    assert left == [100.0, 100.5, 101.0, 101.5, 102.0]
    now[0] += 60.0
    pacer.wait()
    pacer.wait()
    assert now[0] == 162.5, "a pause is not caught up with"


def test_the_ledger_is_not_left_open_by_an_export(tmp_path: Path) -> None:
    file = a_deployment(tmp_path)
    from clawrl.config import read_deployment

    deployment = read_deployment(file)
    path = deployment.state_path / "ledger.sqlite"
    with Ledger(path, deployment.ledger) as ledger:
        queue(ledger, "a")
    assert run("export-turns", str(tmp_path / "a.jsonl"), "--deployment", str(file)).exit_code == 0
    with sqlite3.connect(path, timeout=0.1) as other:
        other.execute("BEGIN EXCLUSIVE")
