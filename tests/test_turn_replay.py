"""Conversations from a file: which there are in it, what a replay of them sends, and what comes of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from clawrl.ledger.looking import TurnFilter
from clawrl.messages import ToolCall
from clawrl.serving import errors
from clawrl.turn_files.conversations import Conversation, playable, read_conversations
from clawrl.turn_files.replay import Options, Pacer, Replay
from clawrl.turn_files.rows import TurnFileError
from tests.cli_kit import lines, run, talked
from tests.live import KEY, MODEL
from tests.operator_house import House, house

pytestmark = pytest.mark.timeout(120)


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
    monkeypatch.setattr("clawrl.turn_files.replay.time.sleep", slept.append)
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
    from clawrl.inspection.exported import exported_messages
    from clawrl.messages import Message
    from clawrl.turn_files.conversations import _of_row

    call = ToolCall(id="c", name="look", arguments='{"at": "sky"}')
    said = [Message(role="assistant", tool_calls=(call,)), Message(role="tool", content="rain", tool_call_id="c")]
    again = [_of_row(row) for row in exported_messages(said)]
    assert again[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "sky"}'}
    assert again[1] == {"role": "tool", "content": "rain", "tool_call_id": "c"}


ENDS = "a\u2028b \x85 c\x0b d\u2029 e"
"""What `str.splitlines` takes for ends of lines, and JSON does not."""


def test_ends_of_lines_inside_a_text_and_a_byte_order_mark_are_no_errors(tmp_path: Path) -> None:
    talks = [{"messages": [{"role": "user", "content": f"{ENDS} {number}"}]} for number in range(2)]
    file = tmp_path / "talks.jsonl"
    file.write_text("\ufeff" + "\r\n".join(json.dumps(one, ensure_ascii=False) for one in talks) + "\r\n", "utf-8")
    found = read_conversations(file)
    assert [one.messages[0]["content"] for one in found] == [f"{ENDS} 0", f"{ENDS} 1"]


def test_a_note_of_what_is_done_that_is_no_text_is_one_line_and_stays_as_it_is(tmp_path: Path) -> None:
    file = written(tmp_path, TALKS)
    notes = tmp_path / "notes"
    notes.write_bytes(b"\xff\n")
    result = run("import-turns", str(file), "--progress", str(notes), "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1 and "name another file with --progress" in result.output
    assert result.output.count("\n") == 1 and notes.read_bytes() == b"\xff\n"


def test_notes_that_cannot_be_written_end_the_import_with_one_line(home: House, tmp_path: Path) -> None:
    file = written(tmp_path, TALKS[1:])
    result = run("import-turns", str(file), "--progress", str(tmp_path / "no" / "such"), "--json", "--model", MODEL)
    assert result.exit_code == 1 and "cannot be written" in result.output and result.output.count("\n") == 1


def test_a_server_of_another_kind_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(self: httpx.Client, *_: object, **__: object) -> httpx.Response:
        return httpx.Response(200, json={"choices": []})

    monkeypatch.setattr(httpx.Client, "post", another)
    replaying = Replay("http://127.0.0.1:9", None, Options(per_minute=60000, model="m"), "x")
    played = replaying.play(Conversation(number=0, messages=tuple(TALKS[1]["messages"])))
    replaying.close()
    assert "did not answer with a chat completion" in played.problem


ROW = {
    "turn_id": "t", "seq": 1, "owner": "o", "session": "s", "kind": "main", "text_gone": False, "tools": [],
    "messages": [{"role": "user", "content": "hi", "tool_calls": "", "tool_call_id": "", "name": ""}],
    "answer": [], "evidence": [],
}  # fmt: skip


def test_a_row_of_an_export_is_read(tmp_path: Path) -> None:
    assert read_conversations(written(tmp_path, [ROW]))[0].messages == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        *[({name: None}, f"line 1: this is not a row of an export: {name}") for name in sorted({*ROW} - {"turn_id"})],
        ({"seq": "one"}, "seq is not a whole number"),
        ({"messages": [{"role": "user"}]}, "line 1: this is not a row of an export: KeyError"),
        ({"messages": "hi"}, "line 1: this is not a row of an export: TypeError"),
        ({"tools": ["{"]}, "line 1: this is not a row of an export: JSONDecodeError"),
        ({"tools": ["5"]}, "line 1: tools must be a list of objects"),
    ],
)
def test_what_only_looks_like_a_row_of_an_export_is_one_line(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    row = {name: value for name, value in {**ROW, **change}.items() if value is not None}
    if "answer" not in row:
        line = "line 1"
    with pytest.raises(TurnFileError, match=line):
        read_conversations(written(tmp_path, [row]))


HI = '{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "holds no conversation"),
        ("{", "line 1: this is not JSON"),
        ('{"messages": []}', "line 1: a conversation is"),
        ("[1]\n", "line 1: a row is a JSON object"),
        (HI + '\n\n{"messages": [{"role": "ghost"}]}', r"line 3: messages\[0\]"),
        ('{"messages": [{"role": "user", "content": 3}]}', "must be a text"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no message of a user"),
        (HI[:-1] + ', "tools": 5}', "line 1: tools must be a list of objects"),
        (HI[:-1] + ', "tools": ["x"]}', "line 1: tools must be a list of objects"),
        ('{"messages": [{"role": "user", "content": "x", "tool_calls": "y"}]}', "tool_calls must be a list"),
        ("[" * 100_000, "line 1: this is not JSON"),
        ('{"messages": NaN}', "line 1: this is not JSON: NaN"),
    ],
    ids=[
        "empty",
        "broken",
        "no messages",
        "a list",
        "a role",
        "a number",
        "nobody asks",
        "tools",
        "a tool",
        "calls",
        "deep",
        "not a number",
    ],
)
def test_a_file_that_cannot_be_replayed_is_one_line_and_nothing_is_sent(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(text)
    with pytest.raises(TurnFileError, match=line):
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
