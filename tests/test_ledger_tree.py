"""Whole conversations as real clients send them: who continues whom, what each turn got as evidence, what may train.

Every request takes the whole way: a chat body and headers in, through the session's facts, into the ledger.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clawrl.ledger import Ledger
from clawrl.messages import (
    Arrival,
    DropReason,
    FinishReason,
    SamplingParams,
    TemplateInputs,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
    VersionSpan,
)
from clawrl.serving.dialects.chat.messages import parse_messages
from clawrl.serving.dialects.tools import parse_tools
from clawrl.serving.sessions import answer_hash, make_arrival, reply_hash, session_facts
from clawrl.serving.trainability import drop_reason
from tests.ledger_kit import open_ledger

Wire = dict[str, Any]
NAMED = {"session_id": "s:0", "x-session-affinity": "s:0"}
SYSTEM: Wire = {"role": "system", "content": "You help in the kitchen."}
TOOLS = ("exec", "read", "write", "spawn")
CONTEXT: Wire = {
    "role": "user",
    "content": [
        {
            "type": "text",
            "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nno jobs\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>",
        }
    ],
}
GO_ON = "\n\nContinue the current task from the existing transcript, and mind the gap."
QUEUED = "[Queued user message from a previous active turn; preserved as context only. Go on below.]\n"


def said(text: str) -> Wire:
    return {"role": "user", "content": text}


def answered(text: str) -> Wire:
    return {"role": "assistant", "content": text}


def called(id: str, arguments: str) -> Wire:
    call = {"id": id, "type": "function", "function": {"name": "exec", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(id: str, text: str) -> Wire:
    return {"role": "tool", "tool_call_id": id, "content": text}


class Kitchen:
    """A ledger, and a client that talks to it."""

    def __init__(self, path: Path, headers: dict[str, str]) -> None:
        self.path, self.headers, self.turns = path, headers, 0
        self.ledger = open_ledger(path)

    def arrive(self, name: str, messages: list[Wire], tools: tuple[str, ...] = TOOLS, **headers: str) -> Arrival:
        body = {
            "messages": messages,
            "tools": [{"type": "function", "function": {"name": tool}} for tool in tools],
        }
        parsed, texts = parse_messages(body), parse_tools(body)
        facts = session_facts(headers or self.headers, body, TurnKind.MAIN, parsed, texts)
        self.turns += 1
        arrival = make_arrival(
            turn_id=TurnId(name),
            messages=parsed,
            session=facts.session,
            owner="local",
            kind=facts.kind,
            ends_session=facts.ends,
            arrived_at=1_000.0 + self.turns,
            inputs=TemplateInputs(tools=texts),
        )
        self.ledger.arrive(arrival)
        return arrival

    def ask(
        self,
        name: str,
        messages: list[Wire],
        answer: Wire,
        tools: tuple[str, ...] = TOOLS,
        finish: FinishReason = FinishReason.STOP,
        **headers: str,
    ) -> Turn:
        return self.answer(self.arrive(name, messages, tools, **headers), answer, finish)

    def answer(self, arrival: Arrival, answer: Wire, finish: FinishReason = FinishReason.STOP) -> Turn:
        (message,) = parse_messages({"messages": [answer]})
        turn = Turn(
            turn_id=arrival.turn_id,
            arrival=arrival,
            reply_hash=reply_hash(arrival.messages_hash, message),
            answer_hash=answer_hash(message),
            answer=message,
            response_text=message.content or "".join(call.arguments for call in message.tool_calls),
            prompt_ids=np.arange(5, dtype=np.int32),
            response_ids=np.arange(3, dtype=np.int32),
            response_logps=-np.ones(3, dtype=np.float32),
            spans=(VersionSpan(start=0, end=3, version=0),),
            sampling=SamplingParams(),
            finish_reason=finish,
            started_at=arrival.arrived_at,
            finished_at=arrival.arrived_at,
            replica="r",
        )
        self.ledger.record(turn, drop_reason(turn, 100))
        return turn

    @property
    def parents(self) -> dict[str, str | None]:
        return {row.turn_id: row.parent for row in reversed(self.ledger.turns())}

    @property
    def evidence(self) -> dict[str, list[str]]:
        cases = ((row.turn_id, self.ledger.judge_request(row.turn_id)) for row in reversed(self.ledger.turns()))
        return {turn_id: [m.content for m in case.evidence] for turn_id, case in cases if case is not None}

    @property
    def dropped(self) -> dict[str, DropReason | None]:
        return {row.turn_id: row.drop_reason for row in self.ledger.turns() if row.state is TurnState.DROPPED}

    @property
    def sessions(self) -> set[str]:
        return {row.session for row in self.ledger.turns()}


either_way = pytest.mark.parametrize("headers", [NAMED, {}], ids=["named", "anonymous"])


@either_way
def test_context_that_moves_to_the_end_of_every_request_is_in_nobodys_way(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    opening = [SYSTEM, said("[Sun 2026-11-29 11:29 UTC] make tea")]
    kitchen.ask("a", [*opening, CONTEXT], called("call_1f", '{"cmd": "boil",  "seconds": 5.0}'))
    loop = [*opening, called("call1f", '{"cmd":"boil","seconds":5}'), result("call1f", "hot")]
    kitchen.ask("b", [*loop, CONTEXT], answered("Here is your tea. "))
    later = [*loop, answered("Here is your tea. "), said("[Sun 2026-11-29 11:31 UTC] too hot"), CONTEXT]
    last = kitchen.ask("c", later, answered("Sorry."))
    assert kitchen.parents == {"a": None, "b": "a", "c": "b"}
    assert kitchen.evidence == {"a": ["hot"], "b": ["too hot"]}
    assert kitchen.dropped == {} and len(kitchen.sessions) == 1
    kitchen.ledger.close()
    kept = open_ledger(tmp_path).turn(TurnId("c"))
    assert kept is not None
    assert kept.arrival == last.arrival and kept.answer_hash == last.answer_hash
    assert kept.arrival.messages == parse_messages({"messages": later}), "the teacher renders what was served"


def test_a_silent_heartbeat_that_is_erased_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path, NAMED)
    talk = [SYSTEM, said("make tea")]
    kitchen.ask("a", talk, answered("Here."))
    other = {"role": "system", "content": "You help in the kitchen, and now you look around."}
    poll = said("Read HEARTBEAT.md if it exists (workspace context). Follow it strictly.")
    kitchen.ask("beat", [other, *talk[1:], answered("Here."), poll], answered("NO_REPLY"), TOOLS[:2])
    kitchen.ask("b", [*talk, answered("Here."), said("thanks")], answered("Any time."))
    assert kitchen.parents == {"a": None, "beat": "a", "b": "a"}
    assert kitchen.evidence == {"a": ["thanks"]}
    assert kitchen.dropped == {"beat": DropReason.SIDE}


def test_a_heartbeat_that_spoke_up_is_what_the_user_reacts_to(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path, NAMED)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    other = {"role": "system", "content": "You look around."}
    poll = said("Follow the heartbeat monitor scratch context when provided.")
    kitchen.ask("beat", [other, *talk[1:], poll], answered("Your tea is cold."))
    seen = [*talk, said("[OpenClaw heartbeat poll]"), answered("Your tea is cold.")]
    kitchen.ask("b", [*seen, said("make more")], answered("Here again."))
    kitchen.ask("c", [*seen, said("make more"), answered("Here again."), said("good")], answered("Yes."))
    assert kitchen.parents == {"a": None, "beat": "a", "b": "beat", "c": "b"}
    assert kitchen.evidence == {"b": ["good"]}, "nobody said a word about the first answer"
    assert kitchen.dropped == {"beat": DropReason.SIDE}


def test_a_memory_flush_is_no_reaction_and_does_not_come_between(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path, NAMED)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    short = {"role": "system", "content": "You help."}
    flush = [short, *talk[1:], said("Pre-compaction memory flush. Write down what matters.")]
    kitchen.ask("f1", flush, called("c", '{"note":"tea"}'), ("read", "write"))
    kitchen.ask("f2", [*flush, called("c", '{"note":"tea"}'), result("c", "ok")], answered("Done."), ("read", "write"))
    kitchen.ask("b", [*talk, said("thanks")], answered("Any time."))
    assert kitchen.parents == {"a": None, "f1": "a", "f2": "f1", "b": "a"}
    assert kitchen.evidence == {"a": ["thanks"]}
    assert kitchen.dropped == {"f1": DropReason.SIDE, "f2": DropReason.SIDE}


@either_way
@pytest.mark.parametrize("last", ["NO_REPLY", "Done."])
def test_a_memory_flush_that_stays_in_the_history_does_not_take_the_reaction(
    tmp_path: Path, headers: dict[str, str], last: str
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    flush = [*talk, said("Pre-compaction memory flush. Write down what matters.")]
    kitchen.ask("f1", flush, called("c", '{"note":"tea"}'))
    noted = [*flush, called("c", '{"note":"tea"}'), result("c", "ok")]
    kitchen.ask("f2", noted, answered(last))
    more = [*noted, answered(last), said("thanks, now make more")]
    kitchen.ask("b", more, answered("Here is more."))
    kitchen.ask("c", [*more, answered("Here is more."), said("good")], answered("Yes."))
    assert kitchen.parents == {"a": None, "f1": "a", "f2": "f1", "b": "a", "c": "b"}
    assert kitchen.evidence == {"a": ["thanks, now make more"], "b": ["good"]}
    assert kitchen.dropped == {"f1": DropReason.SIDE, "f2": DropReason.SIDE}


WAKES = {
    "report": "OpenClaw runtime context (internal):\nThis context is runtime-generated, so hush.\n\n"
    "[Internal task completion event]\nResult: scones",
    "command": "An async command you ran earlier has completed. The kettle is on.",
}


@either_way
@pytest.mark.parametrize("wake", WAKES.values(), ids=WAKES)
def test_news_that_the_model_keeps_to_itself_leaves_the_reaction_to_the_answer_before(
    tmp_path: Path, headers: dict[str, str], wake: str
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Soon.")]
    kitchen.ask("a", talk[:2], answered("Soon."))
    kitchen.ask("news", [*talk, said(wake)], answered("NO_REPLY"))
    kitchen.ask("b", [*talk, said(wake), answered("NO_REPLY"), said("hurry")], answered("Yes."))
    assert kitchen.parents == {"a": None, "news": "a", "b": "a"}
    assert kitchen.evidence == {"a": ["hurry"]}
    assert kitchen.dropped == {"news": DropReason.SIDE}


@either_way
@pytest.mark.parametrize("wake", WAKES.values(), ids=WAKES)
def test_news_that_waits_with_the_users_next_message_is_no_part_of_it(
    tmp_path: Path, headers: dict[str, str], wake: str
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Soon.")]
    kitchen.ask("a", talk[:2], answered("Soon."))
    kitchen.ask("b", [*talk, said(wake), said("hurry")], answered("Yes."))
    assert kitchen.parents == {"a": None, "b": "a"}
    assert kitchen.evidence == {"a": ["hurry"]}


@either_way
def test_a_fork_to_suggest_what_the_user_may_say_is_no_reaction(tmp_path: Path, headers: dict[str, str]) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask("fork", [*talk, said("[SUGGESTION MODE: Guess what comes next.]")], answered("thanks"))
    kitchen.ask("b", [*talk, said("too hot")], answered("Sorry."))
    assert kitchen.parents == {"a": None, "fork": "a", "b": "a"}
    assert kitchen.evidence == {"a": ["too hot"]}
    assert kitchen.dropped == {"fork": DropReason.SIDE}


def test_after_a_compaction_the_last_answer_still_gets_its_reaction(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path, NAMED)
    talk = [SYSTEM, said("make tea"), answered("Here."), said("more")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask("b", talk, answered("Here is more."))
    summarizer = {"role": "system", "content": "You are a context summarization assistant. Sum up."}
    kitchen.ask("sum", [summarizer, said("[User]: make tea")], answered("Tea was made."), (), session_id="s")
    summary = "The conversation history before this point was compacted into the following summary: tea"
    later = [SYSTEM, said(summary), answered("Here is more."), said("enough")]
    kitchen.ask("c", later, answered("Good."), session_id="s:1")
    kitchen.ask("d", [*later, answered("Good."), said("bye")], answered("Bye."), session_id="s:1")
    assert kitchen.parents == {"a": None, "b": "a", "sum": None, "c": "b", "d": "c"}
    assert kitchen.evidence == {"a": ["more"], "b": ["enough"], "c": ["bye"]}
    assert kitchen.dropped == {"sum": DropReason.SIDE} and kitchen.sessions == {"s"}


@either_way
def test_another_system_message_or_another_tool_is_another_segment_of_one_conversation(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    rest = [said("make tea"), answered("Here."), said("more"), answered("Here is more."), said("enough")]
    tomorrow = {"role": "system", "content": "You help in the kitchen. It is Monday."}
    first = kitchen.ask("a", [SYSTEM, *rest[:1]], answered("Here."))
    second = kitchen.ask("b", [tomorrow, *rest[:3]], answered("Here is more."))
    third = kitchen.ask("c", [tomorrow, *rest], answered("Good."), TOOLS[:2])
    assert kitchen.parents == {"a": None, "b": "a", "c": "b"}
    assert kitchen.evidence == {"a": ["more"], "b": ["enough"]}
    assert len({turn.arrival.segment for turn in (first, second, third)}) == 3 and len(kitchen.sessions) == 1


@either_way
def test_a_sub_agent_works_apart_and_its_report_is_no_reaction(tmp_path: Path, headers: dict[str, str]) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("find a recipe")]
    kitchen.ask("a", [*talk, CONTEXT], called("c1", '{"task":"look"}'))
    task = said("[Subagent Context] You help.\n\n[Subagent Task]: look")
    for name in ("one", "two"):
        kitchen.ask(f"sub-{name}", [SYSTEM, task], answered("Scones."), TOOLS[:2], session_id=f"sub-{name}:0")
    loop = [*talk, called("c1", '{"task":"look"}'), result("c1", "started")]
    kitchen.ask("b", [*loop, CONTEXT], answered("I am looking."))
    report = "[Internal task completion event]\nResult: scones"
    news = said(CONTEXT["content"][0]["text"].replace("no jobs", report))
    kitchen.ask("c", [*loop, answered("I am looking."), news], answered("Scones it is.\nShall I?"))
    merged = [*loop, answered("I am looking.\nScones it is.\nShall I?"), said("yes"), CONTEXT]
    kitchen.ask("d", merged, answered("On it."))
    assert kitchen.parents == {"a": None, "sub-one": None, "sub-two": None, "b": "a", "c": "b", "d": "c"}
    assert kitchen.evidence == {"a": ["started"]}, "the user speaks of the report"
    assert kitchen.dropped == dict.fromkeys(("sub-one", "sub-two", "c"), DropReason.SIDE)
    assert kitchen.ledger.state(TurnId("b")) is TurnState.AWAITING_NEXT
    assert len(kitchen.sessions) == 3


@either_way
def test_a_retry_that_the_client_rewrote_is_a_branch_and_the_conversation_goes_on_from_it(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask(
        "lost", [*talk, said("[Sun 2026-11-29 11:30 UTC] more"), CONTEXT], answered(""), finish=FinishReason.ERROR
    )
    kitchen.ask("b", [*talk, said(f"{QUEUED}more{GO_ON}"), CONTEXT], answered("Here is more."))
    kitchen.ask("c", [*talk, said("more"), answered("Here is more."), said("enough"), CONTEXT], answered("Good."))
    assert kitchen.parents == {"a": None, "lost": "a", "b": "a", "c": "b"}
    assert kitchen.evidence == {"a": ["more"], "b": ["enough"]}
    assert kitchen.dropped == {"lost": DropReason.FAILED}


@either_way
def test_a_rewritten_retry_of_a_request_that_was_refused_brings_the_users_own_words(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask("b", [*talk, said(f"{QUEUED}more{GO_ON}"), CONTEXT], answered("Here is more."))
    assert kitchen.parents == {"a": None, "b": "a"}
    assert kitchen.evidence == {"a": ["more"]}


@either_way
def test_a_retry_with_the_same_body_is_mute_and_either_answer_can_be_continued(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here."), said("more")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask("b", talk, answered("Here is more."))
    kitchen.ask("again", talk, answered("There is none."), **headers, **{"x-stainless-retry-count": "1"})
    kitchen.ask("c", [*talk, answered("There is none."), said("pity")], answered("Yes."))
    assert kitchen.parents == {"a": None, "b": "a", "again": "a", "c": "again"}
    assert kitchen.evidence == {"a": ["more"], "again": ["pity"]}
    assert kitchen.ledger.state(TurnId("b")) is TurnState.AWAITING_NEXT


@either_way
def test_an_aborted_answer_that_is_dropped_from_the_history_is_no_turn_to_continue(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here."), said("tell me all about it")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask("cut", talk, answered("Tea is a"), finish=FinishReason.ABORTED)
    note = said("<turn_aborted>\nThe user stopped the turn.\n</turn_aborted>")
    kitchen.ask("b", [*talk, note, said("no, be brief")], answered("Leaves."))
    kitchen.ask("c", [*talk, said("no, be brief"), answered("Leaves."), said("good")], answered("Yes."))
    assert kitchen.parents == {"a": None, "cut": "a", "b": "a", "c": "b"}
    assert kitchen.evidence == {"a": ["tell me all about it"], "b": ["good"]}
    assert kitchen.dropped == {"cut": DropReason.ABORTED}


@either_way
def test_another_try_after_an_answer_that_nobody_saw_is_no_reaction(tmp_path: Path, headers: dict[str, str]) -> None:
    kitchen = Kitchen(tmp_path, headers)
    talk = [SYSTEM, said("make tea"), answered("Here."), said("more")]
    kitchen.ask("a", talk[:2], answered("Here."))
    kitchen.ask("empty", talk, answered(""))
    again = said("The previous attempt did not produce a user-visible answer. Answer now.")
    kitchen.ask("b", [*talk, again], answered("Here is more."))
    kitchen.ask("c", [*talk, again, answered("Here is more."), said("enough")], answered("Good."))
    assert kitchen.parents == {"a": None, "empty": "a", "b": "a", "c": "b"}
    assert kitchen.evidence == {"a": ["more"], "b": ["enough"]}
    assert kitchen.dropped == {"empty": DropReason.EMPTY}


def test_requests_that_run_side_by_side_are_branches_that_go_on_by_themselves(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path, NAMED)
    talk = [SYSTEM, said("make tea"), answered("Here.")]
    kitchen.ask("a", talk[:2], answered("Here."))
    left, right = [*talk, said("left")], [*talk, said("right")]
    under_way = [kitchen.arrive("l", left), kitchen.arrive("r", right)]
    for arrival, text in reversed(list(zip(under_way, ("went left", "went right"), strict=True))):
        kitchen.answer(arrival, answered(text))
    kitchen.ask("ll", [*left, answered("went left"), said("on")], answered("ok"))
    kitchen.ask("rr", [*right, answered("went right"), said("off")], answered("ok"))
    assert kitchen.parents == {"a": None, "l": "a", "r": "a", "ll": "l", "rr": "r"}
    assert kitchen.evidence == {"a": ["left"], "l": ["on"], "r": ["off"]}


class TwoTurnsWithOneAnswer:
    """Two conversations in one session that got the same answer, ``first`` and ``second``; only the answer is told."""

    def __init__(self, path: Path, headers: dict[str, str]) -> None:
        self.kitchen = Kitchen(path, headers)
        for name in ("first", "second"):
            self.kitchen.ask(name, [SYSTEM, said(f"make {name}")], answered("Here."))

    def rewritten(self, name: str, word: str = "thanks", **headers: str) -> str | None:
        """A request whose history nobody knows, and the turn that it continues."""
        self.kitchen.ask(name, [SYSTEM, said("(cut)"), answered("Here."), said(word)], answered(word), **headers)
        return self.kitchen.parents[name]


def test_of_turns_with_one_answer_the_newest_that_waits_is_continued_then_the_newest(tmp_path: Path) -> None:
    two = TwoTurnsWithOneAnswer(tmp_path, NAMED)
    assert [two.rewritten(f"x{i}", f"word {i}") for i in range(3)] == ["second", "first", "second"]
    assert two.kitchen.evidence == {"first": ["word 1"], "second": ["word 0"]}


def test_a_whole_history_beats_a_last_answer_even_when_its_turn_waits_no_more(tmp_path: Path) -> None:
    kitchen = TwoTurnsWithOneAnswer(tmp_path, NAMED).kitchen
    for name in ("x", "y"):
        kitchen.ask(name, [SYSTEM, said("make first"), answered("Here."), said(name)], answered("ok"))
    assert (kitchen.parents["x"], kitchen.parents["y"]) == ("first", "first")
    assert kitchen.evidence == {"first": ["x"]}


def test_a_last_answer_names_no_turn_of_another_session_owner_or_without_a_session(tmp_path: Path) -> None:
    two = TwoTurnsWithOneAnswer(tmp_path, NAMED)
    assert two.rewritten("elsewhere", session_id="t:0") is None
    assert two.rewritten("nowhere", accept="x") is None
    arrival = two.kitchen.arrive("x", [SYSTEM, said("(cut)"), answered("Here."), said("hm")], accept="x")
    foreign = replace(arrival, turn_id=TurnId("foreign"), owner="bob", session="s")
    assert two.kitchen.ledger.arrive(foreign).parent is None
    anonymous = TwoTurnsWithOneAnswer(tmp_path / "other", {})
    assert anonymous.rewritten("x") is None
    assert two.kitchen.evidence == anonymous.kitchen.evidence == {}


def test_a_rewritten_request_that_is_sent_again_or_is_beside_the_conversation_brings_nothing(tmp_path: Path) -> None:
    two = TwoTurnsWithOneAnswer(tmp_path, NAMED)
    assert two.rewritten("side", **NAMED, **{"x-turn-type": "side"}) == "second"
    assert two.kitchen.evidence == {}
    assert two.rewritten("once") == two.rewritten("twice") == "second"
    assert two.kitchen.evidence == {"second": ["thanks"]}


def test_an_empty_answer_is_no_name_for_a_turn(tmp_path: Path) -> None:
    kitchen = Kitchen(tmp_path, NAMED)
    kitchen.ask("a", [SYSTEM, said("make tea")], answered(""))
    kitchen.ask("b", [SYSTEM, said("(cut)"), answered(""), said("well?")], answered("Here."))
    assert kitchen.parents == {"a": None, "b": None}


def test_a_turn_is_found_by_its_answer_through_an_index(tmp_path: Path) -> None:
    two = TwoTurnsWithOneAnswer(tmp_path, NAMED)
    statements: list[str] = []
    ledger: Ledger = two.kitchen.ledger
    for name in ("x", "y", "z"):
        ledger._db.trace(statements.append)
        two.kitchen.arrive(name, [SYSTEM, said("(cut)"), answered("Here."), said(name)])
    ledger._db.trace(None)
    searches = [s for s in statements if s.startswith("SELECT") and "answer_hash =" in s]
    plans = [ledger._db.rows(f"EXPLAIN QUERY PLAN {search}") for search in searches]
    used = {found[1] for plan in plans for step in plan if (found := re.search(r"INDEX (\w+)", step["detail"]))}
    assert used == {"turns_awaiting_session", "turns_by_answer"}
    assert not any("SCAN" in step["detail"] or "TEMP" in step["detail"] for plan in plans for step in plan)
