"""pi-ai, the client of OpenClaw and its kin, before the project's own dialects, in an older and a newer version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from clawrl.messages import FinishReason, TurnKind
from tests.clients import CACHE
from tests.clients.heard import Endpoint
from tests.clients.links import in_a_row, same_ids
from tests.clients.pi import NEWER, OLDER, PiAi, PiError, Way, installed, why_not
from tests.clients.replica import CONTEXT_LENGTH, LATE_S
from tests.clients.script import HEARD, RUNNING, THOUGHT
from tests.clients.server import KEY, Scripted, scripted_server

MISSING = why_not()
SESSION = "harbour"
LONG = "lighthouse " * 60
CUT = 62  # tokens: the thought and nothing of the text
CHAT, RESPONSES, MESSAGES = "openai-completions", "openai-responses", "anthropic-messages"
WAYS = [Way(package=package, api=api) for package in (OLDER, NEWER) for api in (CHAT, RESPONSES, MESSAGES)]
# The older version does not know the event with which a response that was cut off ends.
KNOWS_A_CUT = [way for way in WAYS if (way.package, way.api) != (OLDER, RESPONSES)]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.package.version} {way.api}")

# The first run of all has npm fetch both versions.
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def pi() -> Iterator[PiAi]:
    with PiAi(installed(CACHE)) as program:
        yield program


@pytest.fixture(scope="module")
def running() -> Iterator[Scripted]:
    with scripted_server() as scripted:
        yield scripted


@pytest.fixture
def server(running: Scripted) -> Scripted:
    running.forget()
    return running


@pytest.fixture
def at(server: Scripted) -> Endpoint:
    return replace(server.endpoint, session=SESSION)


@every_way
def test_pi_reads_text_thoughts_and_usage(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    (heard,) = pi.converse(way, replace(at, tools=False), "Hello there.")
    (turn,) = server.turns
    assert (heard.text, heard.reasoning, heard.finish, heard.calls) == (HEARD, THOUGHT, "stop", ())
    assert (heard.prompt_tokens, heard.completion_tokens) == (len(turn.prompt_ids), len(turn.response_ids))
    assert heard.pieces > 5


@every_way
def test_pi_runs_tools_and_its_next_requests_continue_the_turns(
    way: Way, pi: PiAi, server: Scripted, at: Endpoint
) -> None:
    heard = pi.converse(way, at, "RUN: café", "RUN: harbour AND tower", "And again.")
    assert [(one.text, one.finish) for one in heard] == [
        (RUNNING, "toolUse"),
        ("The result is CAFÉ.", "stop"),
        (RUNNING, "toolUse"),
        ("The result is TOWER.", "stop"),
        (HEARD, "stop"),
    ]
    assert [call.arguments for one in heard for call in one.calls] == [
        {"word": word, "depth": 5} for word in ("café", "harbour", "tower")
    ]
    assert in_a_row(server.turns)
    said = [[m.content for m in turn.arrival.new_messages] for turn in server.turns[1:]]
    results = ["HARBOUR was found", "TOWER was found"]
    assert said == [["CAFÉ was found"], ["RUN: harbour AND tower"], results, ["And again."]]
    assert {(turn.arrival.session, turn.arrival.kind) for turn in server.turns} == {(SESSION, TurnKind.MAIN)}


@every_way
def test_the_sampled_ids_are_used_again_though_pi_spells_arguments_anew(
    way: Way, pi: PiAi, server: Scripted, at: Endpoint
) -> None:
    pi.converse(way, at, "RUN: café", "And again.")
    first, second, third = server.turns
    assert second.arrival.history[-1].tool_calls[0].arguments != first.answer.tool_calls[0].arguments
    assert same_ids(second, first) and same_ids(third, second)


@every_way
def test_pi_puts_the_arguments_of_a_long_call_together(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    called, _ = pi.converse(way, at, f"RUN: {LONG}")
    assert called.calls[0].arguments["word"] == LONG.strip()
    assert called.pieces > 100
    assert in_a_row(server.turns)


@every_way
def test_pi_waits_for_an_answer_that_begins_late(way: Way, pi: PiAi, at: Endpoint) -> None:
    began = time.monotonic()
    (heard,) = pi.converse(way, at, "WAIT a little.")
    assert time.monotonic() - began >= LATE_S
    assert (heard.text, heard.finish) == (HEARD, "stop")


@pytest.mark.parametrize("way", KNOWS_A_CUT, ids=lambda way: f"{way.package.version} {way.api}")
def test_pi_knows_an_answer_that_was_cut_off(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    (heard,) = pi.converse(way, replace(at, max_tokens=CUT), "Hello.")
    assert (heard.finish, heard.text, heard.completion_tokens) == ("length", "", CUT)
    assert server.turns[0].finish_reason is FinishReason.LENGTH


@every_way
def test_an_answer_that_breaks_off_is_an_error_to_pi(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    with pytest.raises(PiError, match="The server had an error") as caught:
        pi.converse(way, at, "BREAK here.")
    assert caught.value.heard[-1].finish == "error"
    assert server.turns == []


@every_way
def test_pi_is_told_that_there_is_no_such_model(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    with pytest.raises(PiError, match=r"404.*this endpoint serves 'scripted'"):
        pi.converse(way, replace(at, model="another", retries=2), "Hello.")
    assert len(server.requests) == 1


@every_way
def test_pi_is_told_that_its_key_is_wrong(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    with pytest.raises(PiError, match=r"401.*Incorrect API key"):
        pi.converse(way, replace(at, key=KEY + "!"), "Hello.")
    assert server.requests == []


@every_way
def test_pi_is_told_of_an_overflow_in_the_words_that_it_looks_for(
    way: Way, pi: PiAi, server: Scripted, at: Endpoint
) -> None:
    with pytest.raises(PiError, match=f"maximum context length is {CONTEXT_LENGTH} tokens"):
        pi.converse(way, replace(at, retries=2), "far too long " * 2000)
    assert len(server.requests) == 1


@every_way
def test_pi_comes_again_when_a_busy_server_says_when(way: Way, pi: PiAi, server: Scripted, at: Endpoint) -> None:
    server.busy = 1
    began = time.monotonic()
    (heard,) = pi.converse(way, replace(at, retries=1), "Hello.")
    assert heard.text == HEARD and time.monotonic() - began >= 1.0
    first, second = server.requests
    assert first.body == second.body


@every_way
def test_a_busy_server_is_an_error_to_pi_when_it_may_not_come_again(
    way: Way, pi: PiAi, server: Scripted, at: Endpoint
) -> None:
    server.busy = 1
    with pytest.raises(PiError, match=r"429.*limit of waiting requests"):
        pi.converse(way, at, "Hello.")


@pytest.mark.parametrize(
    ("way", "header"),
    [
        (Way(package=OLDER, api=CHAT, affinity=True), "x-session-affinity"),
        (Way(package=OLDER, api=RESPONSES, affinity=True), "session_id"),
        (Way(package=NEWER, api=CHAT, affinity=True), "x-session-affinity"),
        (Way(package=NEWER, api=RESPONSES, affinity=True), "session-id"),
        (Way(package=NEWER, api=MESSAGES, affinity=True), "x-session-affinity"),
    ],
    ids=lambda value: f"{value.package.version} {value.api}" if isinstance(value, Way) else value,
)
def test_the_session_is_known_by_pi_s_own_headers(
    way: Way, header: str, pi: PiAi, server: Scripted, at: Endpoint
) -> None:
    pi.converse(way, at, "RUN: harbour")
    assert {came.headers.get(header) for came in server.requests} == {SESSION}
    assert all("x-session-id" not in came.headers for came in server.requests)
    assert {turn.arrival.session for turn in server.turns} == {SESSION}
