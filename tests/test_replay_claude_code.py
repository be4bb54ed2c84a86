"""Claude Code over ``/v1/messages``, as it was recorded: system messages in between, titles, reminders, retries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clawrl.messages import FinishReason, Message, TurnKind
from tests.replay_kit import Json, Replay, calls, facts, read, says, sent
from tests.wire import WireRequest, load

SESSION = "c1a0de00-0000-4000-8000-000000000001"
COUNT = calls(("Bash", '{"command": "wc -l boats.txt",  "description": "Count"}'), thought="Count the lines.")
REMINDER = "<system-reminder>\nThe list of tasks is empty.\n</system-reminder>"
TITLE = "Generate a concise, sentence-case title (a few words) for what this is about. Say it as JSON."
SUGGEST = "[SUGGESTION MODE: Suggest what the user might naturally type next into Claude Code.]\nOne line."


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def result(call: Json, words: str, *, failed: bool = False) -> Json:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": words, "is_error": failed}


def replayed(body: Json) -> Json:
    """The blocks of an answer come back as they were, the thoughts with their signature."""
    return {"role": "assistant", "content": body["content"]}


def after(request: WireRequest, *more: Json, **headers: str) -> WireRequest:
    return sent(request, headers, messages=[*request.body["messages"], *more])


def without_header(request: WireRequest) -> WireRequest:
    return sent(request, {"X-Claude-Code-Session-Id": None})


def without_names(request: WireRequest) -> WireRequest:
    return sent(without_header(request), metadata=None)


class Shell:
    """Claude Code that talks to a ledger, with the names that ``shape`` leaves it."""

    def __init__(self, path: Path, shape: Callable[[WireRequest], WireRequest]) -> None:
        self.replay = Replay(path)
        self.shape = shape

    def ask(self, name: str, request: WireRequest, answer: Message, finish: FinishReason = FinishReason.STOP) -> Json:
        body = self.replay.ask(name, self.shape(request), answer, finish)
        return replayed(body) if body else {}

    def talk(self) -> WireRequest:
        """Both fixtures. Returns the last request with its answer in it."""
        self.ask("count", load("claude_code_1"), COUNT)
        answer = self.ask("two", load("claude_code_2"), says("Two boats.", "Read the output."))
        return after(load("claude_code_2"), answer)


TALK = {"count": None, "two": "count"}
COUNTED = {"count": [("tool", "2 boats.txt")]}
SHAPES = {"header": lambda request: request, "metadata": without_header, "no name": without_names}


@pytest.fixture(params=list(SHAPES))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, SHAPES[request.param])


def test_calls_results_and_questions_are_one_conversation(shell: Shell) -> None:
    talk = shell.talk()
    asked = after(talk, user(text(REMINDER), text("Add the ferry.")))
    answer = shell.ask("add", asked, calls(("Bash", '{"command": "echo Fähre"}'), text="I add it.", thought="hm"))
    call = answer["content"][-1]
    denied = user(result(call, "No such file", failed=True), text(REMINDER))
    shell.ask("sorry", after(asked, answer, denied), says("There is no such file."))
    replay = shell.replay
    assert replay.tree == TALK | {"add": "two", "sorry": "add"}
    assert replay.evidence == COUNTED | {
        "two": [("user", "Add the ferry.")],
        "add": [("tool", "Error: No such file")],
    }
    assert replay.fates == dict.fromkeys(["count", "two", "add"], "judging") | {"sorry": "awaiting_next"}
    (session,) = set(replay.sessions.values())
    assert session.startswith("anonymous-") if shell.shape is without_names else session == SESSION
    assert facts(load("claude_code_1")).kind is TurnKind.MAIN


def test_a_system_message_is_the_same_as_a_string_and_as_a_list(shell: Shell) -> None:
    talk = shell.talk()
    asked = after(talk, user(text("Add the ferry.")))
    listed = load("claude_code_1").body["messages"][1]
    assert isinstance(listed["content"], list) and isinstance(asked.body["messages"][1]["content"], str)
    again = sent(asked, messages=[asked.body["messages"][0], listed, *asked.body["messages"][2:]])
    shell.ask("add", again, says("Added."))
    assert shell.replay.tree == TALK | {"add": "two"}
    assert shell.replay.evidence == COUNTED | {"two": [("user", "Add the ferry.")]}
    first, last = (shell.replay.turn(name).arrival for name in ("count", "add"))
    assert first.segment == last.segment


def test_another_system_message_in_between_is_another_history(tmp_path: Path) -> None:
    """So that the test above would notice a system message that is left out."""
    shell = Shell(tmp_path, without_names)
    talk = shell.talk()
    messages = [dict(message) for message in talk.body["messages"]]
    messages[1]["content"] = "You work elsewhere."
    shell.ask("add", sent(talk, messages=[*messages, user(text("Add the ferry."))]), says("Added."))
    assert shell.replay.tree["add"] is None


def test_instructions_and_reminders_after_an_answer_are_nobodys_reaction(shell: Shell) -> None:
    talk = shell.talk()
    told = {"role": "system", "content": [text("# Environment\nToday is 2026-10-04.")]}
    shell.ask("told", after(talk, user(text(REMINDER)), told), says("I see."))
    assert shell.replay.tree == TALK | {"told": "two"}
    assert shell.replay.evidence == COUNTED and shell.replay.fates["two"] == "awaiting_next"


def title() -> WireRequest:
    """What the session is to be called, asked beside its first question: other instructions, no tools, JSON."""
    first = load("claude_code_1")
    told = [first.body["system"][0], text("You are an agent of the harbour."), text(TITLE)]
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    return sent(
        first,
        system=told,
        tools=[],
        messages=[user(text("How many boats are there?"))],
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )


def test_a_title_is_beside_the_conversation(shell: Shell) -> None:
    shell.ask("title", title(), says('{"title":"Boats"}'))
    talk = shell.talk()
    shell.ask("add", after(talk, user(text("Add the ferry."))), says("Added."))
    replay = shell.replay
    assert replay.tree == TALK | {"title": None, "add": "two"}
    assert replay.evidence == COUNTED | {"two": [("user", "Add the ferry.")]}
    assert replay.turn("title").arrival.kind is TurnKind.SIDE
    assert replay.fates["title"] == "side"
    assert read(title()).request.sampling.json_schema, "it is held to its schema all the same"


def test_a_suggestion_of_what_to_type_is_beside_the_conversation(shell: Shell) -> None:
    talk = shell.talk()
    shell.ask("suggestion", after(talk, user(text(SUGGEST))), says("add the ferry"))
    shell.ask("add", after(talk, user(text("Add the ferry."))), says("Added."))
    replay = shell.replay
    assert replay.tree == TALK | {"suggestion": "two", "add": "two"}
    assert replay.evidence == COUNTED | {"two": [("user", "Add the ferry.")]}
    assert replay.fates["suggestion"] == "side"


def test_a_compaction_is_beside_the_conversation_and_what_follows_begins_anew(shell: Shell) -> None:
    talk = shell.talk()
    compact = after(
        talk, user(text("Text only.\nYour task is to create a detailed summary of the conversation so far."))
    )
    shell.ask("summary", compact, says("There are two boats."))
    begun = [user(text("So far: there are two boats."), text("Add the ferry."))]
    answer = shell.ask("add", sent(talk, messages=begun), says("Added."))
    shell.ask("good", after(sent(talk, messages=begun), answer, user(text("Good."))), says("Yes."))
    replay = shell.replay
    assert facts(shell.shape(compact)).reason == "a context summary"
    assert replay.tree == TALK | {"summary": "two", "add": None, "good": "add"}
    assert replay.evidence == COUNTED | {"add": [("user", "Good.")]}
    assert (replay.fates["summary"], replay.fates["add"]) == ("side", "judging")


@pytest.mark.parametrize("recorded", [True, False], ids=["failed", "refused"])
def test_a_request_that_is_sent_again_as_it_was_is_one_reaction(shell: Shell, recorded: bool) -> None:
    talk = shell.talk()
    asked = after(talk, user(text("And the ferry?")))
    if recorded:
        shell.ask("lost", asked, says("The"), finish=FinishReason.ERROR)
    else:
        shell.replay.arrive("lost", shell.shape(asked))
    answer = shell.ask("ferry", after(asked, **{"X-Stainless-Retry-Count": "1"}), says("It is not in there."))
    shell.ask("add", after(asked, answer, user(text("Add it."))), says("Added."))
    replay = shell.replay
    assert replay.tree == TALK | ({"lost": "two"} if recorded else {}) | {"ferry": "two", "add": "ferry"}
    assert replay.evidence == COUNTED | {"two": [("user", "And the ferry?")], "ferry": [("user", "Add it.")]}
    assert replay.fates.get("lost", "failed") == "failed" and replay.fates["ferry"] == "judging"


@pytest.mark.parametrize("joined", [True, False], ids=["one message", "two messages"])
def test_an_answer_that_the_user_stopped_is_not_continued(shell: Shell, joined: bool) -> None:
    talk = shell.talk()
    first, second = text("Explain the file."), text("No, be brief.")
    shell.ask("cut", after(talk, user(first)), says("The file has"), finish=FinishReason.ABORTED)
    again = after(talk, user(first, second)) if joined else after(talk, user(first), user(second))
    answer = shell.ask("brief", again, says("Boats."))
    shell.ask("good", after(again, answer, user(text("Good."))), says("Yes."))
    replay = shell.replay
    assert replay.tree == TALK | {"cut": "two", "brief": "two", "good": "brief"}
    assert replay.evidence == COUNTED | {"two": [("user", "Explain the file.")], "brief": [("user", "Good.")]}
    assert (replay.fates["cut"], replay.fates["brief"]) == ("aborted", "judging")
