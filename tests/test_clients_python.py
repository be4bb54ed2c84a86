"""Real Python clients before the project's own dialects: what they understand, and what the ledger makes of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import litellm
import openai
import pytest

from clawrl.messages import FinishReason, TurnKind
from tests.clients import anthropic_sdk, langchain, litellm_client, mini_swe, openai_responses, openai_sdk
from tests.clients.heard import Endpoint, Heard
from tests.clients.links import in_a_row, same_ids
from tests.clients.replica import CONTEXT_LENGTH, LATE_S
from tests.clients.script import HEARD, RUNNING, THOUGHT
from tests.clients.server import KEY, Scripted, scripted_server
from tests.clients.ways import MESSAGES, WAYS, Way

# LiteLLM's own, on its first use.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Items? '.*' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*' attribute:DeprecationWarning"),
]
SESSION = "harbour"
LONG = "lighthouse " * 60
CUT = 62  # tokens: the thought and nothing of the text


every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
# One raises where an answer is cut off; see below.
every_way_that_returns_a_cut = pytest.mark.parametrize(
    "way", [way for way in WAYS if way.converse is not openai_sdk.chat_helper], ids=lambda way: way.name
)
every_stream = pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=lambda way: way.name)


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
def test_a_client_reads_text_and_usage_and_reasoning_where_it_shows_any(
    way: Way, server: Scripted, at: Endpoint
) -> None:
    (heard,) = way.converse(replace(at, tools=False), "Hello there.")
    (turn,) = server.turns
    assert (heard.text, heard.finish, heard.calls) == (HEARD, way.words.stop, ())
    assert heard.reasoning == (THOUGHT if way.shows else "")
    assert (heard.prompt_tokens, heard.completion_tokens) == (len(turn.prompt_ids), len(turn.response_ids))
    assert heard.pieces > 5 if way.streams else heard.pieces == 0


@every_way
def test_a_client_runs_a_tool_and_its_next_request_continues_the_turn(way: Way, server: Scripted, at: Endpoint) -> None:
    called, answered = way.converse(at, "RUN: café")
    (call,) = called.calls
    assert (called.text, called.finish) == (RUNNING, way.words.call)
    assert (call.name, call.arguments) == ("fetch", {"word": "café", "depth": 5.0})
    assert (answered.text, answered.finish, answered.calls) == ("The result is CAFÉ.", way.words.stop, ())
    first, second = server.turns
    assert in_a_row(server.turns)
    (result,) = second.arrival.new_messages
    assert (result.role, result.content) == ("tool", "CAFÉ was found")
    assert result.tool_call_id == second.arrival.history[-1].tool_calls[0].id == first.answer.tool_calls[0].id
    assert {(turn.arrival.session, turn.arrival.kind) for turn in server.turns} == {(SESSION, TurnKind.MAIN)}


@every_way
def test_several_calls_in_one_answer_are_all_run(way: Way, server: Scripted, at: Endpoint) -> None:
    called, answered = way.converse(at, "RUN: harbour AND tower")
    assert [call.arguments["word"] for call in called.calls] == ["harbour", "tower"]
    assert len({call.id for call in called.calls}) == 2
    assert answered.text == "The result is TOWER."
    assert in_a_row(server.turns)
    assert [m.content for m in server.turns[1].arrival.new_messages] == ["HARBOUR was found", "TOWER was found"]


@every_way
def test_a_long_conversation_is_one_row_of_turns(way: Way, server: Scripted, at: Endpoint) -> None:
    heard = way.converse(at, "Hello.", "RUN: harbour\nRUN: tower", "And again.")
    results = [HEARD, RUNNING, RUNNING, "The result is TOWER.", HEARD]
    assert [answer.text for answer in heard] == results
    assert in_a_row(server.turns)
    said = [[m.content for m in turn.arrival.new_messages] for turn in server.turns[1:]]
    assert said == [["RUN: harbour\nRUN: tower"], ["HARBOUR was found"], ["TOWER was found"], ["And again."]]


@every_way
def test_the_sampled_ids_are_used_again_where_a_client_sends_reasoning_back(
    way: Way, server: Scripted, at: Endpoint
) -> None:
    way.converse(at, "RUN: harbour", "And again.")
    pairs = itertools.pairwise(server.turns)
    assert [same_ids(later, earlier) for earlier, later in pairs] == [way.returns, way.returns]


@every_way_that_returns_a_cut
def test_a_client_knows_an_answer_that_was_cut_off(way: Way, server: Scripted, at: Endpoint) -> None:
    (heard,) = way.converse(replace(at, max_tokens=CUT), "Hello.")
    assert (heard.finish, heard.text) == (way.words.length, "")
    assert (heard.completion_tokens, server.turns[0].finish_reason) == (CUT, FinishReason.LENGTH)


def test_the_stream_helper_refuses_an_answer_that_was_cut_off(at: Endpoint) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        openai_sdk.chat_helper(replace(at, max_tokens=CUT), "Hello.")
    assert caught.value.completion.choices[0].finish_reason == "length"


@every_stream
def test_the_arguments_of_a_long_call_come_in_pieces_and_whole(way: Way, server: Scripted, at: Endpoint) -> None:
    called, _ = way.converse(at, f"RUN: {LONG}")
    assert called.calls[0].arguments["word"] == LONG.strip()
    assert called.pieces > 100
    assert in_a_row(server.turns)


@every_stream
def test_a_client_waits_for_an_answer_that_begins_late(way: Way, at: Endpoint) -> None:
    began = time.monotonic()
    (heard,) = way.converse(at, "WAIT a little.")
    assert time.monotonic() - began >= LATE_S
    assert (heard.text, heard.finish) == (HEARD, way.words.stop)


@every_way
def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(way: Way, server: Scripted, at: Endpoint) -> None:
    # LangChain's stream of a response raises the plain one.
    with pytest.raises((openai.APIError, anthropic.APIError, ValueError)):
        way.converse(at, "BREAK here.")
    assert server.turns == []


def _errors_of(way: Way) -> Any:
    """The module whose exceptions a client raises: LangChain's and LiteLLM's are kinds of OpenAI's."""
    return anthropic if way.words is MESSAGES else openai


@every_way
def test_another_model_is_not_found(way: Way, server: Scripted, at: Endpoint) -> None:
    with pytest.raises(_errors_of(way).NotFoundError, match="this endpoint serves 'scripted'"):
        way.converse(replace(at, model="another", retries=2), "Hello.")
    assert len(server.requests) == 1


@every_way
def test_a_wrong_key_is_an_authentication_error(way: Way, server: Scripted, at: Endpoint) -> None:
    with pytest.raises(_errors_of(way).AuthenticationError, match="Incorrect API key"):
        way.converse(replace(at, key=KEY + "!"), "Hello.")
    assert server.requests == []


@every_way
def test_an_overflow_is_told_in_the_words_that_clients_look_for(way: Way, server: Scripted, at: Endpoint) -> None:
    with pytest.raises(_errors_of(way).BadRequestError, match=f"maximum context length is {CONTEXT_LENGTH}") as caught:
        way.converse(replace(at, retries=2), "far too long " * 2000)
    assert len(server.requests) == 1
    if "litellm" in way.name:
        assert isinstance(caught.value, litellm.ContextWindowExceededError)
    elif way.words is MESSAGES:
        assert "prompt is too long" in str(caught.value)
    else:
        assert getattr(caught.value, "code", None) == "context_length_exceeded"


@every_way
def test_a_busy_server_is_a_rate_limit_error_to_a_client_that_may_not_retry(
    way: Way, server: Scripted, at: Endpoint
) -> None:
    server.busy = 1
    with pytest.raises(_errors_of(way).RateLimitError, match="limit of waiting requests"):
        way.converse(at, "Hello.")


@pytest.mark.parametrize(
    "way",
    [
        way
        for way in WAYS
        if way.converse
        in (
            openai_sdk.chat,
            openai_responses.responses_stream,
            anthropic_sdk.stream,
            langchain.invoke,
            litellm_client.openai_completion,
        )
    ],
    ids=lambda way: way.name,
)
def test_a_client_comes_again_when_a_busy_server_says_when(way: Way, server: Scripted, at: Endpoint) -> None:
    server.busy = 1
    began = time.monotonic()
    (heard,) = way.converse(replace(at, retries=1), "Hello.")
    assert heard.text == HEARD and time.monotonic() - began >= 1.0
    first, second = server.requests
    assert first.body == second.body
    assert [came.headers["x-stainless-retry-count"] for came in server.requests] == ["0", "1"]


@pytest.mark.parametrize("ask", [openai_sdk.several, openai_sdk.several_streamed])
def test_several_answers_are_told_apart_and_counted_together(
    ask: Callable[..., tuple[Heard, ...]], server: Scripted, at: Endpoint
) -> None:
    heard = ask(at, "RUN: harbour", 2)
    assert [(one.text, one.calls[0].arguments["word"], one.finish) for one in heard] == [
        (RUNNING, "harbour", "tool_calls")
    ] * 2
    assert heard[0].calls[0].id != heard[1].calls[0].id
    first, second = server.turns
    assert heard[0].completion_tokens == len(first.response_ids) + len(second.response_ids)
    assert heard[0].prompt_tokens == len(first.prompt_ids)
    assert first.turn_id != second.turn_id and first.reply_hash == second.reply_hash


def test_log_probs_are_those_of_every_sampled_token(server: Scripted, at: Endpoint) -> None:
    entries = openai_sdk.logprobs(replace(at, tools=False), "Hello.")
    assert len(entries) == len(server.turns[0].response_ids)
    assert "".join(token for token, _ in entries).startswith("<think>\nWhat is wanted here?")
    assert {logprob for _, logprob in entries} == {-0.5}


@pytest.mark.parametrize(
    "ask",
    [
        lambda at, text: openai_sdk.forced(at, text, "required"),
        lambda at, text: openai_sdk.forced(at, text, {"type": "function", "function": {"name": "fetch"}}),
        lambda at, text: anthropic_sdk.forced(at, text, {"type": "any"}),
        lambda at, text: anthropic_sdk.forced(at, text, {"type": "tool", "name": "fetch"}),
        langchain.forced,
    ],
    ids=["openai any", "openai by name", "anthropic any", "anthropic by name", "langchain by name"],
)
def test_a_call_that_is_insisted_on_is_made(ask: Callable[[Endpoint, str], Heard], at: Endpoint) -> None:
    heard = ask(at, "RUN: harbour")
    assert (heard.text, heard.reasoning) == ("", "")
    assert [call.arguments for call in heard.calls] == [{"word": "harbour", "depth": 5.0}]


def test_a_client_may_forbid_its_own_tools(at: Endpoint) -> None:
    assert openai_sdk.forced(at, "RUN: harbour", "none").text == HEARD


def test_tokens_are_counted_as_they_will_be_used(server: Scripted, at: Endpoint) -> None:
    counted = anthropic_sdk.counted(at, "RUN: harbour")
    assert server.turns == []
    assert counted == anthropic_sdk.create(at, "RUN: harbour")[0].prompt_tokens


def test_a_response_goes_on_from_the_one_before_with_nothing_but_what_is_new(server: Scripted, at: Endpoint) -> None:
    openai_responses.responses_chained(at, "RUN: harbour", "And again.")
    first, *later = server.requests
    assert "previous_response_id" not in first.body
    assert [came.body["previous_response_id"] for came in later] == [
        f"resp_{turn.turn_id}" for turn in server.turns[:-1]
    ]
    assert [len(came.body["input"]) for came in server.requests] == [1, 1, 1]
    roles = [message.role for message in server.turns[-1].arrival.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_a_response_that_nobody_gave_cannot_be_continued(at: Endpoint) -> None:
    with openai_sdk.client_of(at) as client, pytest.raises(openai.NotFoundError, match="no response 'resp_none'"):
        client.responses.create(model=at.model, input="Hello.", previous_response_id="resp_none")


def test_an_agent_solves_a_task_with_real_commands(server: Scripted, at: Endpoint, tmp_path: Path) -> None:
    write = "echo harbour > note.txt && cat note.txt"
    solved = mini_swe.solve(at, f"Write a note.\nRUN: {write}\nRUN: {mini_swe.DONE}", tmp_path)
    assert (solved.status, solved.commands) == ("Submitted", (write, mini_swe.DONE))
    assert (tmp_path / "note.txt").read_text() == "harbour\n"
    first, second = server.turns
    assert in_a_row(server.turns) and same_ids(second, first)
    (result,) = second.arrival.new_messages
    assert result.role == "tool" and "harbour" in result.content
    # The arguments come back as the model spelt them.
    assert second.arrival.history[-1].tool_calls == first.answer.tool_calls
    assert {turn.arrival.session for turn in server.turns} == {SESSION}


@pytest.mark.parametrize(
    ("change", "task", "error"),
    [
        ({"model": "another"}, "Hello.", litellm.NotFoundError),
        ({"key": "wrong"}, "Hello.", litellm.AuthenticationError),
        ({}, "far too long " * 2000, litellm.ContextWindowExceededError),
    ],
    ids=["model", "key", "overflow"],
)
def test_an_agent_gives_up_at_once_on_what_will_not_change(
    change: dict[str, Any], task: str, error: type[Exception], server: Scripted, at: Endpoint, tmp_path: Path
) -> None:
    with pytest.raises(error):
        mini_swe.solve(replace(at, **change), task, tmp_path)
    assert len(server.requests) <= 1


def test_an_agent_outlasts_a_busy_server(server: Scripted, at: Endpoint, tmp_path: Path) -> None:
    server.busy = 1
    solved = mini_swe.solve(replace(at, retries=1), f"Be quick.\nRUN: {mini_swe.DONE}", tmp_path)
    assert (solved.status, len(server.requests), len(server.turns)) == ("Submitted", 2, 1)
