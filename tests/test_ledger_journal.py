"""The journal of a replica: what it promised survives any kill, is handed in once, and stays bounded."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.codec import Codec, PlainVault
from clawrl.ledger.journal import Journal, JournalFull, orphans, read
from clawrl.ledger.turn_codec import pack_turn, unpack_turn
from clawrl.messages import (
    FinishReason,
    Message,
    SamplingParams,
    TemplateInputs,
    ToolCall,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
)
from tests.ledger_kit import ask, open_ledger, reply, serve, user

CODEC = Codec(PlainVault())


def a_turn(name: str, **changes: Any) -> Turn:
    talk = user(f"question {name}")
    return dataclasses.replace(serve(ask(name, talk, session=f"s-{name}"), talk, "answer"), **changes)


def open_journal(folder: Path, limit_bytes: int = 1_000_000) -> Journal:
    return Journal.of_process(folder, "replica", CODEC, limit_bytes=limit_bytes)


def names(turns: Any) -> list[str]:
    return [turn.turn_id for turn in turns]


def left_behind(folder: Path) -> list[tuple[list[str], int]]:
    return [(names(found.turns), found.damaged) for _, found in orphans(folder, CODEC)]


def test_a_turn_with_everything_in_it_comes_back_as_it_was() -> None:
    call = ToolCall(id="1", name="look", arguments='{"at": "\ud800"}')
    said = Message(role="assistant", content="so", reasoning="hm", tool_calls=(call,))
    turn = a_turn(
        "full", answer=said, finish_reason=FinishReason.LENGTH, answer_hash="h", reused_ids=2, overridden=True
    )
    arrival = dataclasses.replace(
        turn.arrival,
        kind=TurnKind.SIDE,
        sent=(Message(role="tool", content="x", tool_call_id="1", name="look"),),
        inputs=TemplateInputs(tools=("{}",), arguments='{"a": 1}'),
        group="g",
    )
    sampling = SamplingParams(temperature=0.3, top_k=5, stop=("\n", "é"), json_schema="{}")
    turn = dataclasses.replace(turn, arrival=arrival, sampling=sampling)
    again = unpack_turn(CODEC, "local", pack_turn(CODEC, turn))
    for field in dataclasses.fields(Turn):
        ours, theirs = getattr(again, field.name), getattr(turn, field.name)
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()
        else:
            assert ours == theirs and type(ours) is type(theirs), field.name


def test_there_is_no_file_before_the_first_turn_and_none_after_the_last(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal")
    assert not (tmp_path / "journal").exists()
    for name in ("a", "b", "a"):
        journal.append(a_turn(name))
    assert len(journal) == 2 and names(journal.waiting()) == ["a", "b"]
    (file,) = (tmp_path / "journal").iterdir()
    assert file.stat().st_mode & 0o077 == 0, "conversations are nobody else's"
    assert names(read(file, CODEC).turns) == ["a", "b"]
    journal.handed_in([TurnId("a")])
    assert names(read(file, CODEC).turns) == ["b"] == names(journal.waiting())
    journal.append(a_turn("c"))
    journal.handed_in([TurnId("b"), TurnId("c")])
    assert list((tmp_path / "journal").iterdir()) == [] and len(journal) == 0
    journal.append(a_turn("d"))
    assert names(journal.waiting()) == ["d"]


def test_a_living_process_keeps_its_journal_and_a_dead_one_leaves_it_behind(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(a_turn("a"))
    assert left_behind(tmp_path) == [], "it hands its own turns in"
    journal.close()
    assert left_behind(tmp_path) == [(["a"], 0)]


def _write_and_die(folder: Path) -> None:
    journal = open_journal(folder)
    journal.append(a_turn("a"))
    journal.append(a_turn("b"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_promised_survives_the_kill_of_the_process(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(tmp_path,))
    process.start()
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    assert left_behind(tmp_path) == [(["a", "b"], 0)]


def test_a_line_that_a_kill_cut_off_is_nothing_wherever_it_was_cut(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for name in ("a", "b"):
        journal.append(a_turn(name))
    journal.close()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first, first + 1, first + 9, len(whole) - 10, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert left_behind(tmp_path) == [(["a"], 0)], cut


def test_a_spoiled_line_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for name in ("a", "b", "c"):
        journal.append(a_turn(name))
    journal.close()
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"b"', b'"x"')
    file.write_bytes(b"".join(lines))
    assert left_behind(tmp_path) == [(["a", "c"], 1)]


def test_what_a_kill_left_of_a_file_that_was_being_written_anew_goes(tmp_path: Path) -> None:
    (tmp_path / "dead-1.new").write_bytes(b"half of")
    assert list(orphans(tmp_path, CODEC)) == [] and list(tmp_path.iterdir()) == []


def test_a_full_journal_refuses_by_name_of_its_setting_and_keeps_what_it_has(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, limit_bytes=3_000)
    journal.append(a_turn("a"))
    with pytest.raises(JournalFull, match=r"raise serving\.journal_mb"):
        for number in range(9):
            journal.append(a_turn(f"b{number}"))
    kept = len(journal)
    assert 1 <= kept < 9
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 3_000 and len(read(file, CODEC).turns) == kept


def test_a_disk_that_fails_leaves_no_half_of_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(tmp_path)
    journal.append(a_turn("a"))

    def fails(handle: int) -> None:
        raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="input/output"):
            journal.append(a_turn("b"))
    journal.append(a_turn("c"))
    journal.close()
    assert left_behind(tmp_path) == [(["a", "c"], 0)]


def test_turns_that_come_late_and_twice_are_recorded_once_and_find_their_evidence(tmp_path: Path) -> None:
    """The reply was announced while its turn still lay in the journal; a crash then handed the journal in again."""
    ledger: Ledger = open_ledger(tmp_path)
    opening = user("question")
    late = serve(ask("late", opening, session="s"), opening, "answer")
    talk = opening + reply("answer") + user("thanks")
    assert ledger.arrive(ask("next", talk, session="s")).to_judge is None
    first = ledger.record(late)
    assert [request.turn_id for request in first.to_judge] == ["late"]
    again = ledger.record(late)
    assert not again.new and again.to_judge == ()
    assert ledger.counts().recorded == 1 and ledger.state(TurnId("late")) is TurnState.JUDGING
