"""A served turn is written once and read back bit for bit, and its text has one way to disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clawrl.ledger import Ledger
from clawrl.ledger.codec import pack_stats, unpack_stats
from clawrl.ledger.config import LedgerConfig
from clawrl.messages import DropReason, Message, Turn, TurnId, TurnKind, TurnState
from tests.ledger_kit import Clock, ask, open_ledger, opinion, reply, say, serve, taught, user, verdict

HI = user("hi")


def assert_same(one: Turn, other: Turn) -> None:
    for name in ("prompt_ids", "response_ids", "response_logps"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
        one, other = replace_array(one, name), replace_array(other, name)
    assert repr(one) == repr(other)


def replace_array(turn: Turn, name: str) -> Turn:
    if name == "prompt_ids":
        return replace(turn, prompt_ids=np.zeros(0, np.int32))
    empty = {"response_ids": np.zeros(0, np.int32), "response_logps": np.zeros(0, np.float32)}
    return replace(turn, spans=(), **empty)  # type: ignore[arg-type]


def test_a_turn_is_read_back_bit_for_bit_after_a_restart(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    talk = (Message(role="system", content="naïve \ud83d half a pair \x00"), *HI)
    turn = serve(ask("a", talk, session="s"), talk, "héllo \u2028 🦀")
    odd = np.array([0.1, -1e-30, -103.27893], dtype=np.float32)
    turn = replace(turn, response_logps=odd, response_ids=np.array([0, 2**31 - 1, -1], dtype=np.int32))
    ledger.record(turn)
    ledger.close()
    kept = open_ledger(tmp_path).turn(TurnId("a"))
    assert kept is not None
    assert_same(kept, replace(turn, session="s", parent=None))
    assert kept.response_logps.flags.writeable, "whoever hands it to a tensor library wants to own it"


def test_an_anonymous_turn_keeps_its_missing_session_name_and_learns_its_links(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first = say(ledger, "a", HI, "hello")
    say(ledger, "b", HI + reply("hello") + user("more"), "sure")
    kept = ledger.turn(TurnId("b"))
    assert kept is not None
    assert (kept.arrival.session, kept.session, kept.parent) == (None, first.session, "a")


def test_recording_twice_changes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first = say(ledger, "a", HI, "hello")
    log, counts = ledger.transitions(TurnId("a")), ledger.counts()
    again = say(ledger, "a", HI, "something else", drop=DropReason.ABORTED)
    assert (first.new, again.new) == (True, False)
    assert again.session == first.session
    assert (ledger.transitions(TurnId("a")), ledger.counts()) == (log, counts)
    kept = ledger.turn(TurnId("a"))
    assert kept is not None and kept.response_text == "hello"


def test_recording_twice_does_not_bring_a_finished_turn_back(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s")
    ledger.arrive(ask("b", HI + reply("hello") + user("x"), session="s"))
    ledger.judged(verdict("a", None))
    assert not say(ledger, "a", HI, "hello", session="s").new
    assert ledger.state(TurnId("a")) is TurnState.DROPPED


def test_a_served_turn_awaits_what_comes_next(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello")
    assert [(t.source, t.target) for t in ledger.transitions(TurnId("a"))] == [
        (None, TurnState.SERVED),
        (TurnState.SERVED, TurnState.AWAITING_NEXT),
    ]


def test_a_turn_that_cannot_train_is_dropped_with_its_reason_and_never_judged(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s", drop=DropReason.GREEDY)
    assert ledger.arrive(ask("b", HI + reply("hello") + user("x"), session="s")).to_judge is None
    assert ledger.transitions(TurnId("a"))[-1].detail == "greedy"
    row = ledger.turns()[0]
    assert (row.state, row.drop_reason) == (TurnState.DROPPED, DropReason.GREEDY)


def test_a_turn_with_another_turns_arrival_is_refused(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(ValueError, match="carries the arrival of"):
        ledger.record(replace(serve(ask("a", HI), HI, "x"), turn_id=TurnId("b")))
    assert ledger.counts().recorded == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_ids", np.arange(5, dtype=np.int64)),
        ("prompt_ids", np.zeros((1, 5), dtype=np.int32)),
        ("response_logps", np.zeros(3, dtype=np.float64)),
    ],
)
def test_tokens_that_would_have_to_be_cast_are_refused_whole(tmp_path: Path, field: str, value: object) -> None:
    ledger = open_ledger(tmp_path)
    turn = replace(serve(ask("a", HI), HI, "x"), **{field: value})  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        ledger.record(turn)
    assert ledger.counts().recorded == 0
    assert ledger.state(TurnId("a")) is None


def test_rows_for_inspection_can_be_filtered_and_paged(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for i in range(6):
        say(ledger, f"t{i}", user(str(i)), "x", session=f"s{i % 2}", owner="ann" if i < 3 else "bob")
    assert [row.turn_id for row in ledger.turns(2)] == ["t5", "t4"]
    assert [row.turn_id for row in ledger.turns(2, before_seq=ledger.turns(2)[-1].seq)] == ["t3", "t2"]
    assert [row.turn_id for row in ledger.turns(session="s1", owner="ann")] == ["t1"]
    assert ledger.turns(state=TurnState.TRAINED) == []


def test_a_row_shows_the_verdict_the_versions_and_the_sizes(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello", session="s", version=4)
    ledger.arrive(ask("b", HI + reply("hello") + user("x"), session="s"))
    ledger.judged(verdict("a", -1))
    row = ledger.turns()[0]
    assert (row.verdict, row.score, row.oldest_version, row.newest_version) == (-1, -1.5, 4, 5)
    assert (row.prompt_tokens, row.response_tokens) == (5, 3)


class Xor:
    """A toy vault: every private blob is flipped and stamped with its owner."""

    def seal(self, owner: str, plain: bytes) -> bytes:
        return owner.encode() + b"|" + bytes(b ^ 0x5A for b in plain)

    def unseal(self, owner: str, sealed: bytes) -> bytes:
        stamp, _, body = sealed.partition(b"|")
        assert stamp == owner.encode()
        return bytes(b ^ 0x5A for b in body)


def test_no_text_and_no_token_reaches_the_disk_around_the_vault(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", LedgerConfig(), clock=Clock(), vault=Xor())
    talk = user("SECRET-QUESTION")
    turn = serve(ask("a", talk, session="s", owner="ann"), talk, "SECRET-ANSWER")
    marks = np.frombuffer(b"SECRET-TOKENS!!!", dtype=np.int32)
    turn = replace(turn, prompt_ids=marks, sampling=replace(turn.sampling, stop=("SECRET-STOP",)))
    ledger.record(turn)
    follow_up = talk + reply("SECRET-ANSWER") + user("SECRET-EVIDENCE")
    case = ledger.arrive(ask("b", follow_up, session="s", owner="ann")).to_judge
    ledger.feedback(opinion("a", 1.0, "SECRET-COMMENT"))
    targets = replace(taught(("SECRET-TAUGHT",), top_k=4), topk_ids=np.tile(marks, (1, 3, 1)))
    ledger.judged(
        replace(verdict("a"), hints=("SECRET-HINT",), detail="SECRET-DETAIL"), targets=targets, feedback_at=5.0
    )
    ledger.record(serve(ask("c", follow_up, session="s", owner="ann"), follow_up, "x"))
    assert ledger.known_hints("ann", None, 1) == ("SECRET-HINT",)
    commented, taught_back = ledger.judge_request(TurnId("a")), ledger.targets(TurnId("a"))
    assert commented is not None and commented.evidence[-1].content == "SECRET-COMMENT"
    assert taught_back is not None and taught_back.topk_ids.tobytes() == targets.topk_ids.tobytes()
    assert case is not None and case.evidence == user("SECRET-EVIDENCE") and case.request == talk
    kept = ledger.turn(TurnId("a"))
    assert kept is not None
    assert_same(kept, replace(turn, session="s"))
    ledger.close()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert files.count(b"ann|") > 10
    assert b"SECRET" not in files


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "deep" / "er")
    say(ledger, "a", HI, "x")
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "deep" / "er").iterdir()}
    assert set(modes) >= {"ledger.db", "ledger.db-wal"}
    assert set(modes.values()) == {0o600}


def test_figures_of_any_kind_can_be_stored() -> None:
    stats = {"loss": np.float32(0.5), "n": np.int64(3), "nan": math.nan, "list": np.arange(2), "path": Path("x"), 7: {}}
    kept = unpack_stats(pack_stats(stats))  # type: ignore[arg-type]
    assert kept.pop("nan") is None
    assert kept == {"loss": 0.5, "n": 3, "list": [0, 1], "path": "x", "7": {}}


def test_a_turn_keeps_its_whole_request_and_its_group(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    talk = user("one") + reply("two") + user("three")
    ledger.record(serve(ask("a", talk, group="g"), talk, "four"))
    say(ledger, "b", HI, "hello")
    ledger.close()
    ledger = open_ledger(tmp_path)
    kept, other = ledger.turn(TurnId("a")), ledger.turn(TurnId("b"))
    assert kept is not None and other is not None
    assert (kept.arrival.history, kept.arrival.new_messages) == (talk[:2], talk[2:])
    assert (kept.arrival.messages, kept.arrival.group) == (talk, "g")
    assert (other.arrival.history, other.arrival.group) == ((), None)


def test_the_group_that_was_announced_counts_not_the_one_that_came_along(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.arrive(ask("a", HI, group="g"))
    ledger.record(serve(ask("a", HI), HI, "hello"))
    kept = ledger.turn(TurnId("a"))
    assert kept is not None and kept.arrival.group == "g"


def test_the_same_answer_to_the_same_request_is_a_duplicate_within_the_window(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock, duplicate_window_s=60.0)
    again = serve(ask("b", HI, session="another"), HI, "hello")
    assert not ledger.is_duplicate(again)
    say(ledger, "a", HI, "hello", session="s", drop=DropReason.GREEDY)
    clock.now += 59.0
    assert ledger.is_duplicate(again)
    clock.now += 2.0
    assert not ledger.is_duplicate(again)


def test_another_answer_request_owner_or_kind_is_no_duplicate_nor_is_an_answer_of_a_group(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    say(ledger, "a", HI, "hello")
    ledger.record(serve(ask("side", user("x"), kind=TurnKind.SIDE), user("x"), "y"))
    for arrival, talk, text in (
        (ask("b", HI), HI, "goodbye"),
        (ask("b", user("ho")), user("ho"), "hello"),
        (ask("b", HI, owner="bob"), HI, "hello"),
        (ask("b", HI, group="g"), HI, "hello"),
        (ask("b", user("x")), user("x"), "y"),
    ):
        assert not ledger.is_duplicate(serve(arrival, talk, text))
    assert ledger.is_duplicate(serve(ask("b", HI), HI, "hello"))


def test_of_two_equal_turns_only_the_later_is_the_duplicate_whenever_one_asks(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    first, second = serve(ask("a", HI), HI, "hello"), serve(ask("b", HI), HI, "hello")
    ledger.record(first)
    assert not ledger.is_duplicate(first), "a turn is not its own duplicate"
    ledger.record(second)
    assert (ledger.is_duplicate(first), ledger.is_duplicate(second)) == (False, True)
