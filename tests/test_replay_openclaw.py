"""OpenClaw 2026.9.6, as it was recorded: the tree of its turns, what each got as evidence, and what would train.

It names its session in headers if it is told to, and in a line about its runtime; a server must do without either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clawrl.messages import FinishReason, Message, TurnKind
from tests.replay_kit import Json, Replay, calls, facts, javascript, says, sent
from tests.wire import WireRequest, load

INTERNAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
HEADERS = ("session_id", "x-session-affinity", "x-client-request-id")
LOOK = calls(
    ("exec", '{"command": "cat boats.txt",   "timeout": 5.0}'),
    ("read", '{"path":"tide.md"}'),
    thought="The list of boats and the tide are needed.",
)
TABLE = "| boat | time |\n|---|---|\n| Möwe | 09:30 |"
QUEUED = "[Queued user message from a previous active turn; preserved as context only. The active prompt is below.]\n"
GO_ON = "\n\nContinue the current task from the existing transcript, and leave nothing out."


def context(text: str = 'Helpers at work:\n"no one"') -> Json:
    block = f"{INTERNAL}\n{text}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    return {"role": "user", "content": [{"type": "text", "text": block}]}


def user(text: str) -> Json:
    return {"role": "user", "content": f"[Sat 2026-10-03 09:30 UTC] {text}"}


def result(call: Json, text: str) -> Json:
    return {"role": "tool", "content": text, "tool_call_id": call["id"]}


def replayed(body: Json) -> Json:
    """An answer in the next request: ids without their underscores, arguments written anew."""
    message = dict(body["choices"][0]["message"])
    for call in message.get("tool_calls", []):
        call["id"] = call["id"].replace("_", "")
        call["function"]["arguments"] = javascript(call["function"]["arguments"])
    return message


def history(request: WireRequest) -> list[Json]:
    return [message for message in request.body["messages"] if INTERNAL not in json.dumps(message)]


def following(request: WireRequest, *more: Json, tail: Sequence[Json] = (context(),), **headers: str) -> WireRequest:
    """What was said before, more of it, and the context behind all."""
    return sent(request, headers, messages=[*history(request), *more, *tail])


def without_headers(request: WireRequest) -> WireRequest:
    return sent(request, dict.fromkeys(HEADERS))


def without_names(request: WireRequest) -> WireRequest:
    def cut(content: Any) -> Any:
        return content.partition("\n\nRuntime:")[0] if isinstance(content, str) else content

    messages = [message | {"content": cut(message["content"])} for message in request.body["messages"]]
    return without_headers(sent(request, messages=messages))


class Office:
    """OpenClaw that talks to a ledger, with the names that ``shape`` leaves it."""

    def __init__(self, path: Path, shape: Callable[[WireRequest], WireRequest]) -> None:
        self.replay = Replay(path)
        self.shape = shape

    def ask(self, name: str, request: WireRequest, answer: Message, **more: Any) -> Json:
        return self.replay.ask(name, self.shape(request), answer, **more)

    def talk(self) -> WireRequest:
        """Four turns of the fixtures. Returns the last request with its answer in it."""
        self.ask("look", load("openclaw_1"), LOOK)
        self.ask("answer", load("openclaw_1_after_tools"), says("Only the Möwe, at half past nine."))
        self.ask("table", load("openclaw_2"), says(TABLE, "One row is enough."))
        body = self.ask("tomorrow", load("openclaw_3"), says("Tomorrow all boats stay in."))
        return following(load("openclaw_3"), replayed(body))


SHAPES = {"headers": lambda request: request, "runtime line": without_headers, "no name": without_names}
TALK = {"look": None, "answer": "look", "table": "answer", "tomorrow": "table"}


@pytest.fixture(params=list(SHAPES))
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Office:
    return Office(tmp_path, SHAPES[request.param])


@pytest.fixture(params=["headers", "runtime line"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Office:
    return Office(tmp_path, SHAPES[request.param])


def test_a_tool_loop_and_three_questions_are_one_conversation(office: Office) -> None:
    office.talk()
    replay = office.replay
    assert replay.tree == TALK
    assert replay.evidence == {
        "look": [("tool", "Möwe 09:30\nAlbatros 13:00"), ("tool", "High water at 10:10.")],
        "answer": [("user", "No, in table form please.")],
        "table": [("user", "Good. And tomorrow?")],
    }
    assert replay.fates == dict.fromkeys(["look", "answer", "table"], "judging") | {"tomorrow": "awaiting_next"}
    (session,) = set(replay.sessions.values())
    assert session.startswith("anonymous-") if office.shape is without_names else session == "harbour-1"
    assert {replay.turn(name).arrival.kind for name in TALK} == {TurnKind.MAIN}


def test_an_answer_is_known_again_with_other_ids_and_arguments_written_anew(office: Office) -> None:
    talk = office.talk()
    asked = following(talk, user("Put the kettle on."))
    wanted = calls(("exec", '{"command": "echo caf\\u00e9",  "timeout": 5.0}'), text=" At once. ", thought="hm")
    answer = replayed(office.ask("kettle", asked, wanted))
    (call,) = answer["tool_calls"]
    assert call["id"].isalnum() and call["function"]["arguments"] == '{"command":"echo café","timeout":5}'
    office.ask("done", following(asked, answer, result(call, "café")), says("It is on."))
    tree = office.replay.tree
    assert (tree["kettle"], tree["done"]) == ("tomorrow", "kettle")
    assert office.replay.evidence["kettle"] == [("tool", "café")]
    assert office.replay.fates["kettle"] == "judging"


def beat(request: WireRequest, prompt: str) -> WireRequest:
    """A heartbeat after ``request``: another system prompt, fewer tools."""
    shape = load("openclaw_heartbeat")
    told = [shape.body["messages"][0], *history(request)[1:], user(prompt), context()]
    return sent(request, messages=told, tools=shape.body["tools"])


POLL = "Follow the heartbeat monitor scratch context, if any. All quiet? Reply NO_REPLY."


def test_a_heartbeat_that_had_nothing_to_say_leaves_no_trace(named: Office) -> None:
    talk = named.talk()
    named.ask("beat", beat(talk, POLL), says("NO_REPLY"))
    named.ask("thanks", following(talk, user("Thank you.")), says("Any time."))
    replay = named.replay
    assert replay.tree == TALK | {"beat": "tomorrow", "thanks": "tomorrow"}
    assert replay.evidence["tomorrow"] == [("user", "Thank you.")] and "beat" not in replay.evidence
    assert (replay.fates["tomorrow"], replay.fates["beat"], replay.fates["thanks"]) == (
        "judging",
        "side",
        "awaiting_next",
    )


def test_the_user_answers_a_heartbeat_that_spoke_and_nothing_is_learned_from_that(named: Office) -> None:
    talk = named.talk()
    named.ask("spoke", beat(talk, POLL), says("The tide table is out of date."))
    fixture = load("openclaw_heartbeat")
    named.ask("quiet", fixture, says("NO_REPLY"))
    seen = [*history(fixture)[1:-1], user("Then get a new one.")]
    later = sent(talk, messages=[history(talk)[0], *seen, context()])
    body = named.ask("renew", later, says("Here it is."))
    named.ask("good", following(later, replayed(body), user("Good.")), says("Yes."))
    replay = named.replay
    assert facts(named.shape(fixture)).reason == "a heartbeat"
    assert replay.tree == TALK | {"spoke": "tomorrow", "quiet": "spoke", "renew": "spoke", "good": "renew"}
    assert replay.evidence.keys() == {"look", "answer", "table", "renew"}
    assert replay.evidence["renew"] == [("user", "Good.")]
    assert (replay.fates["spoke"], replay.fates["quiet"]) == ("side", "side")
    assert replay.fates["tomorrow"] == "awaiting_next", "nobody said a word about it"


def test_a_memory_flush_is_beside_the_conversation_with_all_of_its_tool_loop(named: Office) -> None:
    talk = named.talk()
    flush = load("openclaw_memory_flush")
    note = '{"path": "memory/2026-10-03.md", "content": "tables"}'
    answer = replayed(named.ask("flush", flush, calls(("write", note))))
    looped = following(flush, answer, result(answer["tool_calls"][0], "written"))
    named.ask("flushed", looped, says("NO_REPLY"))
    named.ask("thanks", following(talk, user("Thank you.")), says("Any time."))
    replay = named.replay
    assert replay.tree == TALK | {"flush": "tomorrow", "flushed": "flush", "thanks": "tomorrow"}
    assert replay.evidence["tomorrow"] == [("user", "Thank you.")]
    assert not {"flush", "flushed"} & replay.evidence.keys()
    assert (replay.fates["flush"], replay.fates["flushed"]) == ("side", "side")
    assert facts(named.shape(flush)).reason == "a memory flush"


def test_a_compaction_is_beside_the_conversation_which_goes_on_in_a_new_stretch(tmp_path: Path) -> None:
    office = Office(tmp_path, SHAPES["headers"])
    office.talk()
    office.ask("summary", load("openclaw_compaction"), says("The Möwe leaves at 09:30."))
    after = load("openclaw_after_compaction")
    body = office.ask("tell", after, says("They know."))
    office.ask("bye", following(after, replayed(body), user("Good night.")), says("Bye."))
    replay = office.replay
    assert replay.tree == TALK | {"summary": None, "tell": "tomorrow", "bye": "tell"}
    assert replay.evidence["tomorrow"] == [("user", "Tell the crew of the Möwe.")]
    assert replay.evidence["tell"] == [("user", "Good night.")] and "summary" not in replay.evidence
    assert (replay.fates["summary"], replay.fates["tomorrow"], replay.fates["tell"]) == ("side", "judging", "judging")
    assert set(replay.sessions.values()) == {"harbour-1"}
    whole, new = replay.turn("tomorrow"), replay.turn("tell")
    assert new.arrival.prefix_hash != whole.reply_hash, "its history is another one"
    assert replay.turn("bye").arrival.prefix_hash == new.reply_hash
    assert facts(load("openclaw_compaction")).reason == "a context summary"


def test_a_sub_agent_works_in_a_session_of_its_own_and_its_report_is_no_reaction(office: Office) -> None:
    talk = office.talk()
    asked = following(talk, user("Count the boats."))
    spawn = replayed(office.ask("spawn", asked, calls(("sessions_spawn", '{"task":"count"}'))))
    task = load("openclaw_subagent")
    did = replayed(office.ask("sub", task, calls(("exec", '{"command":"wc -l boats.txt"}'))))
    office.ask("sub done", following(task, did, result(did["tool_calls"][0], "2")), says("Two boats."))
    started = following(asked, spawn, result(spawn["tool_calls"][0], "started"))
    waiting = replayed(office.ask("waiting", started, says("A helper counts.")))
    report = context("[Internal task completion event]\nsource: subagent\nResult: Two boats.")
    news = following(started, waiting, tail=[report])
    told = replayed(office.ask("news", news, says("There are two.\nIs that all?")))
    both = {"role": "assistant", "content": f"{waiting['content']}\n{told['content']}"}
    office.ask("all", following(started, both, user("That is all.")), says("Fine."))
    replay = office.replay
    assert replay.tree == TALK | {
        "spawn": "tomorrow",
        "sub": None,
        "sub done": "sub",
        "waiting": "spawn",
        "news": "waiting",
        "all": "news",
    }
    assert replay.evidence["spawn"] == [("tool", "started")]
    assert not {"waiting", "news", "sub", "sub done"} & replay.evidence.keys(), "the user speaks of the report"
    assert {replay.fates[name] for name in ("sub", "sub done", "news")} == {"side"}
    assert replay.fates["waiting"] == "awaiting_next"
    assert replay.sessions["sub"] == replay.sessions["sub done"] != replay.sessions["spawn"]


@pytest.mark.parametrize("recorded", [True, False], ids=["failed", "refused"])
def test_a_retry_that_was_wrapped_brings_the_users_own_words_once(office: Office, recorded: bool) -> None:
    talk = office.talk()
    asked = following(talk, user("And the ferry?"))
    if recorded:
        office.ask("lost", asked, says("The fer"), finish=FinishReason.ERROR)
    else:
        office.replay.arrive("lost", office.shape(asked))
    wrapped = {"role": "user", "content": f"{QUEUED}{asked.body['messages'][-2]['content']}{GO_ON}"}
    body = office.ask("ferry", following(talk, wrapped), says("At noon."))
    office.ask("last", following(asked, replayed(body), user("Late.")), says("Sorry."))
    replay = office.replay
    lost = {"lost": "tomorrow"} if recorded else {}
    assert replay.tree == TALK | lost | {"ferry": "tomorrow", "last": "ferry"}
    assert replay.evidence["tomorrow"] == [("user", "And the ferry?")]
    assert replay.evidence["ferry"] == [("user", "Late.")]
    assert replay.fates["ferry"] == "judging" and replay.fates.get("lost", "failed") == "failed"
    assert "lost" not in replay.evidence


def test_a_wrapped_retry_alone_brings_the_users_own_words(office: Office) -> None:
    talk = office.talk()
    office.ask("ferry", following(talk, user(f"{QUEUED}And the ferry?{GO_ON}")), says("At noon."))
    assert office.replay.tree["ferry"] == "tomorrow"
    assert office.replay.evidence["tomorrow"] == [("user", "And the ferry?")]


@pytest.mark.parametrize("note", ["", "<turn_aborted>\nIt took too long.\n</turn_aborted>"])
def test_half_an_answer_is_not_continued_and_does_not_train(office: Office, note: str) -> None:
    talk = office.talk()
    asked = following(talk, user("Tell me all about tides."))
    office.ask("cut", asked, says("Tides come"), finish=FinishReason.ABORTED)
    notes = [{"role": "user", "content": note}] if note else []
    again = following(asked, *notes, user("No, be brief."))
    body = office.ask("brief", again, says("Twice a day."))
    office.ask("good", following(again, replayed(body), user("Good.")), says("Yes."))
    replay = office.replay
    assert replay.tree == TALK | {"cut": "tomorrow", "brief": "tomorrow", "good": "brief"}
    assert replay.evidence["tomorrow"] == [("user", "Tell me all about tides.")]
    assert replay.evidence["brief"] == [("user", "Good.")] and "cut" not in replay.evidence
    assert (replay.fates["cut"], replay.fates["brief"]) == ("aborted", "judging")


def test_another_try_after_an_empty_answer_is_no_reaction(office: Office) -> None:
    talk = office.talk()
    asked = following(talk, user("And the ferry?"))
    office.ask("empty", asked, says("", thought="Hm."))
    nudge = {"role": "user", "content": "The previous attempt did not produce a user-visible answer. Speak up."}
    body = office.ask("ferry", following(asked, nudge), says("At noon."))
    office.ask("last", following(asked, replayed(body), user("Late.")), says("Sorry."))
    replay = office.replay
    assert replay.tree == TALK | {"empty": "tomorrow", "ferry": "tomorrow", "last": "ferry"}
    assert (replay.evidence["tomorrow"], replay.evidence["ferry"]) == (
        [("user", "And the ferry?")],
        [("user", "Late.")],
    )
    assert (replay.fates["empty"], replay.fates["ferry"]) == ("empty", "judging")
