"""Codex over ``/v1/responses``, as it was recorded: items, developer messages, notes of its own, retries, aborts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clawrl.messages import FinishReason, Message, TurnKind
from tests.replay_kit import Json, Replay, calls, facts, read, says, sent
from tests.wire import WireRequest, load

THREAD = "0c0de000-0000-7000-8000-000000000001"
COUNT = calls(("exec_command", '{"cmd":"wc -l boats.txt"}'), thought="Count the lines.")
ABORTED = "<turn_aborted>\nThe user interrupted the turn. Commands may still run.\n</turn_aborted>"


def said(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def user(text: str) -> Json:
    return said("user", text)


def output(call: Json, text: str) -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def replayed(body: Json) -> list[Json]:
    """The items of an answer as they come back: reasoning by its summary, the rest as it was."""
    items = [dict(item) for item in body["output"]]
    for item in items:
        if item["type"] == "reasoning":
            del item["content"], item["status"]
            item["encrypted_content"] = None
    return items


def after(request: WireRequest, *more: Json) -> WireRequest:
    return sent(request, input=[*request.body["input"], *more])


def without_names(request: WireRequest) -> WireRequest:
    heads = dict.fromkeys(("session-id", "thread-id", "x-client-request-id", "x-codex-window-id"))
    return sent(request, heads | {"x-codex-turn-metadata": None}, prompt_cache_key=None, client_metadata=None)


class Terminal:
    """Codex that talks to a ledger, with the names that ``shape`` leaves it."""

    def __init__(self, path: Path, shape: Callable[[WireRequest], WireRequest]) -> None:
        self.replay = Replay(path)
        self.shape = shape

    def ask(
        self, name: str, request: WireRequest, answer: Message, finish: FinishReason = FinishReason.STOP
    ) -> list[Json]:
        body = self.replay.ask(name, self.shape(request), answer, finish)
        return replayed(body) if body else []

    def talk(self) -> WireRequest:
        """A call, and an answer to its result. Returns the last request with its answer in it."""
        fixture = load("codex")
        self.ask("count", sent(fixture, input=fixture.body["input"][:4]), COUNT)
        return after(fixture, *self.ask("two", fixture, says("It has two lines.", "Read the output.")))


TALK = {"count": None, "two": "count"}
COUNTED = {"count": [("tool", "exit 0\n2 boats.txt\n")]}
SHAPES = {"names": lambda request: request, "no name": without_names}


@pytest.fixture(params=list(SHAPES))
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, SHAPES[request.param])


def test_calls_results_and_questions_are_one_conversation(terminal: Terminal) -> None:
    talk = terminal.talk()
    asked = after(talk, user("Add a line for the ferry."))
    *thought, call = terminal.ask("write", asked, calls(("exec_command", '{"cmd": "echo Fähre"}'), text="I write."))
    terminal.ask("done", after(asked, *thought, call, output(call, "exit 0\n")), says("Done."))
    replay = terminal.replay
    assert replay.tree == TALK | {"write": "two", "done": "write"}
    assert replay.evidence == COUNTED | {
        "two": [("user", "Add a line for the ferry.")],
        "write": [("tool", "exit 0\n")],
    }
    assert replay.fates == dict.fromkeys(["count", "two", "write"], "judging") | {"done": "awaiting_next"}
    (session,) = set(replay.sessions.values())
    assert session.startswith("anonymous-") if terminal.shape is without_names else session == THREAD
    assert facts(load("codex")).kind is TurnKind.MAIN


def test_a_tool_of_a_namespace_is_known_again(terminal: Terminal) -> None:
    talk = terminal.talk()
    (flat,) = [name for name, tool in read(load("codex")).tools.names.items() if tool.namespace == "boats"]
    asked = after(talk, user("Set sail."))
    (call,) = terminal.ask("sail", asked, calls((flat, '{"boat":"Möwe"}')))
    assert (call["namespace"], call["name"]) == ("boats", "sail")
    terminal.ask("sailed", after(asked, call, output(call, "under way")), says("She sails."))
    assert terminal.replay.tree == TALK | {"sail": "two", "sailed": "sail"}
    assert terminal.replay.evidence["sail"] == [("tool", "under way")]


def test_developer_messages_and_the_environment_are_nobodys_reaction(terminal: Terminal) -> None:
    talk = terminal.talk()
    moved = user("<environment_context>\n  <cwd>/srv/pier</cwd>\n</environment_context>")
    allowed = said("developer", "<permissions instructions>\nread and write\n</permissions instructions>")
    asked = after(talk, allowed, moved, user("Now write."))
    answer = terminal.ask("write", asked, says("Written."))
    terminal.ask("good", after(asked, *answer, allowed, user("Good.")), says("Yes."))
    assert terminal.replay.tree == TALK | {"write": "two", "good": "write"}
    assert terminal.replay.evidence == COUNTED | {"two": [("user", "Now write.")], "write": [("user", "Good.")]}


def test_notes_of_the_client_alone_bring_no_evidence(terminal: Terminal) -> None:
    talk = terminal.talk()
    moved = user("<environment_context>\n  <cwd>/srv/pier</cwd>\n</environment_context>")
    terminal.ask("moved", after(talk, said("developer", "Be brief."), moved), says("I see."))
    assert terminal.replay.tree["moved"] == "two"
    assert terminal.replay.evidence == COUNTED and terminal.replay.fates["two"] == "awaiting_next"


def test_an_answer_that_the_user_stopped_is_not_continued(terminal: Terminal) -> None:
    talk = terminal.talk()
    asked = after(talk, user("Explain the file."))
    terminal.ask("cut", asked, says("The file has"), finish=FinishReason.ABORTED)
    again = after(asked, user(ABORTED), user("No, be brief."))
    answer = terminal.ask("brief", again, says("Boats."))
    terminal.ask("good", after(again, *answer, user("Good.")), says("Yes."))
    replay = terminal.replay
    assert replay.tree == TALK | {"cut": "two", "brief": "two", "good": "brief"}
    assert replay.evidence == COUNTED | {"two": [("user", "Explain the file.")], "brief": [("user", "Good.")]}
    assert (replay.fates["cut"], replay.fates["brief"]) == ("aborted", "judging")


def test_a_call_that_the_user_stopped_is_judged_by_what_the_user_says(terminal: Terminal) -> None:
    talk = terminal.talk()
    asked = after(talk, user("Sort it."))
    (call,) = terminal.ask("sort", asked, calls(("exec_command", '{"cmd":"rm boats.txt"}')))
    stopped = after(asked, call, output(call, "aborted by user"), user(ABORTED), user("Never delete it!"))
    terminal.ask("sorry", stopped, says("Sorry."))
    replay = terminal.replay
    assert replay.tree == TALK | {"sort": "two", "sorry": "sort"}
    assert replay.evidence["sort"] == [("tool", "aborted by user"), ("user", "Never delete it!")]
    assert replay.fates["sort"] == "judging"


@pytest.mark.parametrize("recorded", [True, False], ids=["failed", "refused"])
def test_a_request_that_is_sent_again_as_it_was_is_one_reaction(terminal: Terminal, recorded: bool) -> None:
    talk = terminal.talk()
    asked = after(talk, user("And the ferry?"))
    if recorded:
        terminal.ask("lost", asked, says("The"), finish=FinishReason.ERROR)
    else:
        terminal.replay.arrive("lost", terminal.shape(asked))
    answer = terminal.ask("ferry", asked, says("It is not in there."))
    terminal.ask("add", after(asked, *answer, user("Add it.")), says("Added."))
    replay = terminal.replay
    assert replay.tree == TALK | ({"lost": "two"} if recorded else {}) | {"ferry": "two", "add": "ferry"}
    assert replay.evidence == COUNTED | {"two": [("user", "And the ferry?")], "ferry": [("user", "Add it.")]}
    assert replay.fates.get("lost", "failed") == "failed" and replay.fates["ferry"] == "judging"


def test_a_compaction_is_beside_the_conversation_and_what_follows_begins_anew(terminal: Terminal) -> None:
    talk = terminal.talk()
    compact = after(talk, user("You are performing a CONTEXT CHECKPOINT COMPACTION. Hand over."))
    terminal.ask("summary", compact, says("boats.txt has two lines."))
    first = talk.body["input"][:4]
    after_it = sent(talk, {"x-codex-window-id": f"{THREAD}:1"}, input=[*first, user("So far: two lines."), user("On.")])
    answer = terminal.ask("on", after_it, says("Here I am."))
    terminal.ask("good", after(after_it, *answer, user("Good.")), says("Yes."))
    replay = terminal.replay
    assert facts(terminal.shape(compact)).reason == "a context summary"
    assert replay.tree == TALK | {"summary": "two", "on": None, "good": "on"}
    assert replay.evidence == COUNTED | {"on": [("user", "Good.")]}
    assert (replay.fates["summary"], replay.fates["on"]) == ("side", "judging")
    assert (replay.sessions["on"] == replay.sessions["two"]) is (terminal.shape is not without_names)


def test_another_call_than_the_one_that_was_made_is_another_history(terminal: Terminal) -> None:
    """So that the tests above would notice a replay that is not the answer."""
    talk = terminal.talk()
    asked = after(talk, user("Set sail."))
    terminal.ask("sail", asked, calls(("exec_command", '{"cmd":"sail"}')))
    rowed = {"type": "function_call", "call_id": "x", "name": "exec_command", "arguments": '{"cmd":"row"}'}
    terminal.ask("rowed", after(asked, rowed, output(rowed, "slow")), says("Slow."))
    assert terminal.replay.tree["rowed"] is None and "sail" not in terminal.replay.evidence
