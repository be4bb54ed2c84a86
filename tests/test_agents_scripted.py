"""OpenClaw, Codex and Claude Code before a scripted server: what they really send, and what is made of it.

Each agent holds its conversation once; the tests look at what came of it.
"""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clawrl.messages import FinishReason, Turn, TurnKind
from tests.agents import claude_code, codex, openclaw, openclaw_older
from tests.agents.gateway import Gateway
from tests.agents.scripted import SLOW, AgentServer, agent_server
from tests.clients.heard import Endpoint
from tests.clients.links import continues, in_a_row, same_ids
from tests.clients.pi import why_not
from tests.clients.script import HEARD, result_word
from tests.clients.server import Came

MISSING = why_not()
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.agents,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    # The first run of all has npm fetch the agents.
    pytest.mark.timeout(3600),
]
FOUND = "harbour is here"
# Room for the first request of OpenClaw's gateway and two notes.
ROOM = 260_000
NOTE = " ".join(["the tide comes in and goes out;"] * 1300)
PATIENCE_S = 120
TEXTS = ("Please look.\nRUN: ./look", "And what is your name?", "RUN: ./look")
# Codex tells the model more of a command than what it printed.
REPORTED = re.compile(
    r"Chunk ID: \w+\nWall time: [\d.]+ seconds\nProcess exited with code 0\nOriginal token count: \d+\nOutput:\n"
    rf"{FOUND}\n"
)


@dataclass(frozen=True, kw_only=True)
class Talk:
    """``session`` is what the agent itself calls the conversation, if it lets us know, ``result`` what its tool gives
    back."""

    said: tuple[str, ...]
    turns: tuple[Turn, ...]
    requests: tuple[Came, ...]
    session: str | None
    result: re.Pattern[str]


def with_look(folder: Path) -> Path:
    """The folder, with the program that the user has run."""
    program = folder / "look"
    program.write_text(f"#!/bin/sh\necho {FOUND}\n")
    program.chmod(0o755)
    return folder


def talk_of(
    converse: Callable[..., tuple[str, ...]],
    folder: Path,
    *,
    session: Callable[[Endpoint], str | None],
    result: re.Pattern[str] = re.compile(FOUND),
) -> Talk:
    with agent_server() as server:
        at = server.at(str(uuid.uuid4()))
        said = converse(at, with_look(folder), *TEXTS)
        return Talk(
            said=said,
            turns=tuple(server.seen.turns),
            requests=tuple(server.seen.requests),
            session=session(at),
            result=result,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def of_openclaw(folder: Callable[[], Path]) -> Talk:
    return talk_of(openclaw.converse, folder(), session=lambda at: at.session)


@pytest.fixture(scope="module")
def of_older_openclaw(folder: Callable[[], Path]) -> Talk:
    return talk_of(openclaw_older.converse, folder(), session=lambda at: None)


@pytest.fixture(scope="module")
def of_codex(folder: Callable[[], Path]) -> Talk:
    home = folder()
    return talk_of(codex.converse, home, session=lambda at: codex.session_in(home), result=REPORTED)


@pytest.fixture(scope="module")
def of_claude_code(folder: Callable[[], Path]) -> Talk:
    return talk_of(claude_code.converse, folder(), session=lambda at: at.session)


@pytest.fixture(scope="module", params=["of_openclaw", "of_older_openclaw", "of_codex", "of_claude_code"])
def talk(request: pytest.FixtureRequest) -> Talk:
    found: Talk = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """OpenClaw's gateway and the server behind it."""

    server: AgentServer
    gateway: Gateway

    def turns(self, session: str) -> list[Turn]:
        """The answered turns of the session that OpenClaw knows by this name, in order."""
        session_id = self.gateway.session_ids()[f"agent:main:{session}"]
        return [turn for turn in self.server.seen.turns if turn.arrival.session == session_id]


@pytest.fixture(scope="module")
def daemon(folder: Callable[[], Path]) -> Iterator[Daemon]:
    with agent_server(ROOM) as server, Gateway(server.at(), with_look(folder())) as gateway:
        yield Daemon(server=server, gateway=gateway)


def soon(found: Callable[[], list[Turn]]) -> list[Turn]:
    """What is found, once there is any; fails after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if turns := found():
            return turns
        time.sleep(0.2)
    raise AssertionError("it never came")


def on_the_side(turns: list[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.arrival.kind is TurnKind.SIDE]


def words(turn: Turn) -> list[tuple[str, str]]:
    """Who said what of the evidence that a request brings."""
    return [(message.role, message.content) for message in turn.arrival.new_messages]


def test_an_agent_answers_with_what_its_tool_found(talk: Talk) -> None:
    result = f"The result is {result_word(words(talk.turns[1])[0][1])}."
    # The older OpenClaw also prints what it said before it ran the tool.
    assert [said.splitlines()[-1] for said in talk.said] == [result, HEARD, result]
    assert [len(turn.answer.tool_calls) for turn in talk.turns] == [1, 0, 0, 1, 0]


def test_all_turns_of_an_agent_are_of_its_own_session_and_may_train(talk: Talk) -> None:
    assert {turn.arrival.session for turn in talk.turns} == {talk.session}
    assert {turn.arrival.kind for turn in talk.turns} == {TurnKind.MAIN}


def test_each_turn_of_an_agent_continues_the_one_before(talk: Talk) -> None:
    assert in_a_row(list(talk.turns))


def test_evidence_is_what_the_user_and_the_tool_said_and_nothing_of_the_agents_own(talk: Talk) -> None:
    assert [said for role, said in words(talk.turns[0]) if role == "user"] == [TEXTS[0]]
    ((role, result),) = words(talk.turns[1])
    assert role == "tool" and talk.result.fullmatch(result)
    assert words(talk.turns[2]) == [("user", TEXTS[1])]
    assert words(talk.turns[3]) == [("user", TEXTS[2])]
    ((role, result),) = words(talk.turns[4])
    assert role == "tool" and talk.result.fullmatch(result)


def test_the_older_openclaw_sends_texts_as_lists_of_parts(of_older_openclaw: Talk) -> None:
    sent = [message for message in of_older_openclaw.requests[-1].body["messages"] if message["role"] == "user"]
    assert [message["content"] for message in sent] == [[{"type": "text", "text": text}] for text in TEXTS]


def test_the_prompts_of_the_older_openclaw_go_on_from_the_ids_that_were_sampled(of_older_openclaw: Talk) -> None:
    assert all(same_ids(later, earlier) for earlier, later in itertools.pairwise(of_older_openclaw.turns))


def test_the_gateway_runs_tools_for_three_turns(daemon: Daemon) -> None:
    said = [daemon.gateway.say("talk", text) for text in TEXTS]
    turns = daemon.turns("talk")
    assert said == ["The result is harbour.", HEARD, "The result is harbour."]
    assert {turn.arrival.kind for turn in turns} == {TurnKind.MAIN}
    assert in_a_row(turns)
    assert [words(turn) for turn in turns[1:]] == [
        [("tool", FOUND)],
        [("user", TEXTS[1])],
        [("user", TEXTS[2])],
        [("tool", FOUND)],
    ]


def test_an_answer_that_the_user_stops_is_broken_off_at_once(daemon: Daemon) -> None:
    daemon.gateway.say("stopped", "Hello there.")
    with daemon.gateway.saying("stopped", "Tell me SLOWLY.") as answer:
        next(line for line in answer.iter_lines() if '"content"' in line)
    (broken_off,) = soon(lambda: daemon.server.broken_off)
    assert broken_off.finish_reason is FinishReason.ABORTED
    assert SLOW.startswith(broken_off.answer.content) and len(broken_off.answer.content) < len(SLOW)
    assert daemon.gateway.say("stopped", "And again.") == HEARD
    turns = daemon.turns("stopped")
    assert broken_off.arrival.session == turns[0].arrival.session
    assert [turn.answer.content for turn in turns] == [HEARD, HEARD]
    # OpenClaw sends what was not answered along with what comes next, in words of its own.
    assert words(turns[1]) == [("user", "Tell me SLOWLY.\n\nAnd again.")]
    assert continues(turns[1], turns[0])


def test_a_heartbeat_is_on_the_side_and_no_evidence(daemon: Daemon) -> None:
    daemon.gateway.say("main", "Hello there.")
    daemon.gateway.wake("The tide is in.")
    (heartbeat,) = soon(lambda: on_the_side(daemon.turns("main")))
    assert words(heartbeat) == []
    daemon.gateway.say("main", "And you?")
    last = daemon.turns("main")[-1]
    assert last.arrival.kind is TurnKind.MAIN and words(last) == [("user", "And you?")]


def test_a_sub_agent_has_a_session_of_its_own_and_is_on_the_side(daemon: Daemon) -> None:
    daemon.gateway.say("boss", "USE: sessions_spawn\nRUN: Say hello to the harbour.")
    # The sub-agent's report comes to its parent as a turn of its own.
    (report,) = soon(lambda: on_the_side(daemon.turns("boss")))
    ids = daemon.gateway.session_ids()
    (child,) = [session_id for key, session_id in ids.items() if key.startswith("agent:main:subagent:")]
    (task,) = [turn for turn in daemon.server.seen.turns if turn.arrival.session == child]
    assert task.arrival.kind is TurnKind.SIDE and "Say hello to the harbour." in words(task)[-1][1]
    daemon.gateway.say("boss", "And you?")
    turns = daemon.turns("boss")
    assert [turn.arrival.kind for turn in turns] == [TurnKind.MAIN, TurnKind.MAIN, TurnKind.SIDE, TurnKind.MAIN]
    assert turns[2].turn_id == report.turn_id and words(turns[3]) == [("user", "And you?")]


def test_a_history_that_grows_too_long_is_summarised_on_the_side_and_goes_on(daemon: Daemon) -> None:
    notes = [f"Note {number}: {NOTE}" for number in range(4)]
    said = 0
    while not said or not on_the_side(daemon.turns("long")):
        daemon.gateway.say("long", notes[said])
        said += 1
    daemon.gateway.say("long", "And again.")
    turns = daemon.turns("long")
    assert all(not turn.arrival.inputs.tools for turn in on_the_side(turns))
    main = [turn for turn in turns if turn.arrival.kind is TurnKind.MAIN]
    # The note that did not fit was sent again, after the summary.
    assert [words(turn)[-1] for turn in main] == [*(("user", note) for note in notes[:said]), ("user", "And again.")]
    assert [len(words(turn)) for turn in main[1:]] == [1] * said
    assert not continues(main[-2], main[-3]) and main[-2].arrival.answer_hash == main[-3].answer_hash
    assert continues(main[-1], main[-2])
    session = turns[0].arrival.session
    sent = [came.headers for came in daemon.server.seen.requests if came.headers["x-session-id"] == session]
    # It counts the summaries, and asks for one without the count.
    assert {headers["session_id"] for headers in sent} == {f"{session}:0", f"{session}:1", session}
