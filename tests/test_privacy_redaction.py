"""Redaction of everything that carries text, before it reaches the disk; a redacted turn has no ids there."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from clawrl.ledger.codec import Codec, PlainVault
from clawrl.ledger.journal import Journal, read
from clawrl.ledger.screening import for_a_journal
from clawrl.messages import (
    DropReason,
    Message,
    TemplateInputs,
    ToolCall,
    TurnId,
    TurnState,
    Withheld,
)
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.logs import redact_logs
from clawrl.privacy.redactor import Redactor, _mapped, _texts, finders_of
from tests.ledger_kit import opinion, reply, user, verdict
from tests.privacy_kit import IDS, PRIVATE_RULES, found_in, opened, said

MAIL = "ann.archer@example.com"
PLAIN = {"encrypt": False, **PRIVATE_RULES}


def rules() -> Redactor:
    return Redactor(finders_of(PrivacyConfig.model_validate(PRIVATE_RULES).redaction))


def call(text: str) -> Message:
    arguments = json.dumps({"to": text, "n": 4111111111111111, "deep": [{"x": f"a {text}"}]})
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name="send", arguments=arguments),))


@pytest.mark.parametrize("place", ["request", "history", "tool call", "answer", "answer's call", "reasoning", "tools"])
def test_wherever_it_stands_the_turn_is_redacted_and_keeps_no_ids(tmp_path: Path, place: str) -> None:
    talk = user(f"I am {MAIL}") if place == "request" else user("hello")
    if place == "history":
        talk = (*user(f"I am {MAIL}"), *reply("hello"), *user("and now?"))
    if place == "tool call":
        talk = (*user("send it"), call(MAIL), Message(role="tool", content="done", tool_call_id="1"))
    turn = said("t", talk, f"I wrote to {MAIL}" if place == "answer" else "fine")
    if place == "answer's call":
        turn = replace(turn, answer=call(MAIL))
    if place == "reasoning":
        turn = replace(turn, answer=Message(role="assistant", content="fine", reasoning=f"{MAIL} is theirs"))
    if place == "tools":
        tool = json.dumps({"function": {"name": "f", "description": f"ask {MAIL}"}})
        turn = replace(turn, arrival=replace(turn.arrival, inputs=TemplateInputs(tools=(tool,))))
    ledger = opened(tmp_path / "state", **PLAIN)
    ledger.record(turn)
    kept = ledger.turn(TurnId("t"))
    assert kept is not None and kept.withheld is Withheld.IDS
    assert len(kept.prompt_ids) == len(kept.response_ids) == len(kept.spans) == 0
    row = ledger.turns()[0]
    assert (row.state, row.drop_reason) == (TurnState.DROPPED, DropReason.REDACTED)
    assert (row.prompt_tokens, row.response_tokens) == (len(IDS), len(IDS)), "how long it was is no secret"
    assert "[EMAIL]" in repr(kept)
    assert ledger.counts().adds_up
    assert found_in(tmp_path, MAIL, IDS) == []
    ledger.close()
    assert found_in(tmp_path, MAIL, IDS) == []


def called(*ids: str) -> tuple[Message, ...]:
    calls = tuple(ToolCall(id=one, name="send", arguments="{}") for one in ids)
    results = (Message(role="tool", content="done", tool_call_id=one) for one in ids)
    return (Message(role="assistant", content="", tool_calls=calls), *results)


def test_ids_of_tool_calls_are_redacted_and_each_result_still_names_its_call(tmp_path: Path) -> None:
    other = "bob.baker@example.com"
    talk = (*user("send it"), *called(MAIL, other, f"call:{MAIL}", "plain"), *called(other), *user("thanks"))
    ledger = opened(tmp_path / "state", **PLAIN)
    turn = said("t", talk, "fine", session="s")
    ledger.arrive(turn.arrival)
    ledger.record(turn)
    assert ledger.turns()[0].drop_reason is DropReason.REDACTED
    kept = ledger.turn(TurnId("t"))
    assert kept is not None
    shown = kept.arrival.messages
    made = [one.id for message in shown for one in message.tool_calls]
    assert made == [message.tool_call_id for message in shown if message.role == "tool"]
    assert made == ["[EMAIL]-1", "[EMAIL]-2", "call:[EMAIL]-3", "plain", "[EMAIL]-2"]
    ledger.close()
    assert found_in(tmp_path, MAIL) == found_in(tmp_path, other) == []


def test_an_id_alone_gives_a_turn_away_also_that_of_the_answer(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", **PLAIN)
    ledger.record(said("result", (*user("hi"), Message(role="tool", content="ok", tool_call_id=MAIL)), "hello"))
    ledger.record(replace(said("answer", user("hi"), "hello"), answer=called(MAIL)[0]))
    assert [row.drop_reason for row in ledger.turns()] == [DropReason.REDACTED] * 2
    assert found_in(tmp_path, MAIL) == []


def test_a_turn_with_nothing_to_hide_is_kept_as_it_is(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", **PLAIN)
    ledger.record(said("t", user("hello"), "fine"))
    assert ledger.turns()[0].state is TurnState.AWAITING_NEXT
    assert "state/ledger.sqlite-wal: ids as int32" in found_in(tmp_path, "hello", IDS), "the search can find something"


def test_what_gave_a_secret_away_need_not_stand_beside_it_again(tmp_path: Path) -> None:
    redaction = {"builtin": [], "rules": [{"name": "password", "pattern": r"password is (?P<secret>\w+)"}]}
    ledger = opened(tmp_path / "state", encrypt=False, redaction=redaction)
    ledger.record(said("t", user("my password is hunter22"), "hunter22 is weak"))
    kept = ledger.turn(TurnId("t"))
    assert kept is not None and kept.response_text == "[PASSWORD] is weak"
    ledger.close()
    assert found_in(tmp_path, "hunter22") == []


def test_a_number_in_the_arguments_of_a_call_is_looked_at_and_they_stay_json() -> None:
    redacted = rules().turn(said("t", (*user("x"), call("y"), *user("z")), "fine"))
    arguments = json.loads(redacted.arrival.messages[1].tool_calls[0].arguments)
    assert arguments == {"to": "y", "n": "[CREDIT_CARD]", "deep": [{"x": "a y"}]}


def test_later_turns_of_the_session_are_redacted_as_well_and_are_still_linked(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", **PLAIN)
    first, second = user(f"I am {MAIL}"), (*user(f"I am {MAIL}"), *reply("hello"), *user("go on"))
    ledger.record(said("a", first, "hello", session="s"))
    assert ledger.record(said("b", second, "fine", session="s")).parent == "a"
    assert [row.drop_reason for row in ledger.turns()] == [DropReason.REDACTED] * 2
    ledger.close()
    assert found_in(tmp_path, MAIL, IDS) == []


def test_evidence_judgement_hints_and_comments_are_redacted(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", **PLAIN)
    ledger.record(said("a", user("hi"), "hello", session="s"))
    case = ledger.arrive(
        said("b", (*user("hi"), *reply("hello"), *user(f"no! {MAIL}")), "", session="s").arrival
    ).to_judge
    assert case is not None and case.evidence[0].content == "no! [EMAIL]", "the judge is shown what is kept"
    ledger.judged(replace(verdict("a"), hints=(f"write to {MAIL}",), detail=f"{MAIL} asked"))
    assert ledger.known_hints("ann", "s", 5) == ("write to [EMAIL]",)
    ledger.feedback(opinion("a", -1.0, f"{MAIL} is mine"))
    request = ledger.judge_request(TurnId("a"))
    assert request is not None and request.feedback is not None and request.feedback.comment == "[EMAIL] is mine"
    assert ledger.turns()[0].state is TurnState.JUDGING, "what is said of a clean turn does not spoil it"
    ledger.close()
    assert found_in(tmp_path, MAIL) == []


def test_the_name_of_a_session_can_say_too_much_and_still_holds_it_together(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "state", **PLAIN)
    ledger.record(said("a", user("hi"), "hello", session=MAIL))
    linked = ledger.record(said("b", (*user("hi"), *reply("hello"), *user("on")), "fine", session=MAIL))
    assert linked.parent == "a" and linked.session.startswith("private-")
    assert ledger.latest_turn("ann", MAIL) == "b"
    assert ledger.end_session("ann", MAIL) == 1
    ledger.close()
    assert found_in(tmp_path, MAIL) == []


def test_hashes_of_what_was_redacted_cannot_be_tried_out(tmp_path: Path) -> None:
    turn = said("t", user(MAIL), "fine", session="s", answer_hash="f" * 64)
    hashes = [turn.reply_hash, turn.answer_hash, turn.arrival.messages_hash]
    ledger = opened(tmp_path / "state", **PLAIN)
    ledger.record(turn)
    ledger.close()
    assert [found_in(tmp_path, plain) for plain in hashes] == [[], [], []]


def test_a_journal_gets_a_turn_redacted_and_the_ledger_still_knows_why_it_does_not_train(tmp_path: Path) -> None:
    codec, redactor = Codec(PlainVault()), rules()

    def ready(turn):  # type: ignore[no-untyped-def]
        return for_a_journal(turn, redactor, keeps_untrainable=True)

    journal = Journal(tmp_path / "j.journal", codec, limit_bytes=100_000, ready=ready)
    journal.append(said("t", user(MAIL), "fine"))
    assert found_in(tmp_path, MAIL, IDS) == []
    ledger = opened(tmp_path / "state", **PLAIN)
    for turn in read(journal.path, codec).turns:
        ledger.record(turn)
    assert ledger.turns()[0].drop_reason is DropReason.REDACTED


def test_logs_are_redacted_whoever_writes_them(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()
    try:
        redact_logs(rules())
        redact_logs(rules())
        log = logging.getLogger("somebody.else")
        log.warning("turn of %s: %d%%", MAIL, 5)
        try:
            raise ValueError(f"cannot parse {MAIL}")
        except ValueError:
            log.exception("failed")
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.messages == ["turn of [EMAIL]: 5%", "failed"]
    assert MAIL not in caplog.text and "cannot parse [EMAIL]" in caplog.text


def test_a_long_history_is_scanned_once() -> None:
    scans = []

    class Counts:
        def find(self, text: str) -> list[tuple[int, int, str]]:
            scans.append(text)
            return []

    redactor = Redactor([Counts()])
    talk = user(*(f"line {n}" for n in range(50)))
    redactor.turn(said("a", talk, "fine"))
    scanned = len(scans)
    redactor.turn(said("b", (*talk, *user("more")), "fine"))
    assert scanned >= 51 and len(scans) == scanned + 1


def test_what_is_looked_at_is_what_is_replaced() -> None:
    """Two walks over the same values: one must not know a place that the other one does not."""
    tool = json.dumps({"function": {"name": "tool", "description": "what it is for"}})
    turn = said(
        "t", (*user("a question"), call("an address"), Message(role="tool", content="done", name="n")), "answer"
    )
    turn = replace(
        turn,
        arrival=replace(turn.arrival, inputs=TemplateInputs(tools=(tool,)), sent=user("as it was sent")),
        answer=replace(call("another"), content="visible", reasoning="thought"),
        sampling=replace(turn.sampling, stop=("stop here",), json_schema='{"title": "a schema"}'),
    )
    for value in (turn, opinion("t", 1.0, "a comment"), replace(verdict("t"), hints=("a hint",), detail="why")):
        replaced: list[str] = []
        note = functools.partial(lambda seen, text: seen.append(text) or text, replaced)
        _mapped(value, note, note)
        assert sorted(_texts(value)) == sorted(replaced) and len(replaced) >= 1
