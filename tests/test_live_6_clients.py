"""Real clients before a running graph whose tiny model calls tools: what they hear, and what the ledger makes of it.

What depends on the dialects alone is tested without Ray, in `test_clients_python` and `test_clients_pi`.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel

from clawrl.messages import DropReason, Turn, TurnKind
from clawrl.serving.trainability import drop_reason
from tests.clients import CACHE, langchain, mini_swe, openai_responses, openai_sdk
from tests.clients.deployment import tool_deployment
from tests.clients.heard import Endpoint, Heard
from tests.clients.links import in_a_row, same_ids
from tests.clients.pi import NEWER, OLDER, PiAi, installed, why_not
from tests.clients.pi import Way as PiWay
from tests.clients.ways import WAYS, Way
from tests.live import KEY, MODEL, Live
from tests.tool_model import HEARD, LONG, MALFORMED, THOUGHT

# LiteLLM's own, on its first use.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Items? '.*' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*' attribute:DeprecationWarning"),
    pytest.mark.timeout(1000),
]
MISSING = why_not()
APIS = ("openai-completions", "openai-responses", "anthropic-messages")
PI_WAYS = [PiWay(package=package, api=api) for package in (OLDER, NEWER) for api in APIS]


@pytest.fixture(scope="module")
def graph() -> Iterator[Live]:
    with Live(tool_deployment()) as deployment:
        yield deployment


@pytest.fixture
def at(graph: Live) -> Endpoint:
    return Endpoint(base_url=graph.url, key=KEY, model=MODEL, session=f"harbour-{uuid.uuid4().hex[:8]}")


def turns_of(graph: Live, at: Endpoint, count: int) -> list[Turn]:
    """The turns of the session in the order in which they were asked for, once all are on record."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with graph.ledger() as ledger:
            rows = sorted(ledger.turns(count + 10, session=at.session), key=lambda row: row.seq)
            turns = [turn for row in rows if (turn := ledger.turn(row.turn_id)) is not None]
        if len(turns) >= count:
            return turns
        time.sleep(0.2)
    raise AssertionError(f"{len(turns)} of {count} turns are on record")


def evidence_of(graph: Live, turn: Turn) -> list[tuple[str, str]]:
    with graph.ledger() as ledger:
        case = ledger.judge_request(turn.turn_id)
    return [] if case is None else [(message.role, message.content) for message in case.evidence]


def ran_a_tool_and_went_on(graph: Live, at: Endpoint, heard: tuple[Heard, ...]) -> list[Turn]:
    """What every client must get out of "RUN: harbour" and "And again.", and leave behind."""
    called, answered, again = heard
    (call,) = called.calls
    assert (call.name, dict(call.arguments)) == ("fetch", {"word": "harbour"})
    assert (answered.text, again.text) == ("The result is HARBOUR.", HEARD)
    turns = turns_of(graph, at, 3)
    assert len(turns) == 3 and in_a_row(turns)
    assert {(turn.arrival.session, turn.arrival.kind) for turn in turns} == {(at.session, TurnKind.MAIN)}
    assert [evidence_of(graph, turn) for turn in turns] == [
        [("tool", "HARBOUR was found")],
        [("user", "And again.")],
        [],
    ]
    return turns


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_client_runs_a_tool_and_its_turns_get_their_evidence(way: Way, graph: Live, at: Endpoint) -> None:
    heard = way.converse(at, "RUN: harbour", "And again.")
    turns = ran_a_tool_and_went_on(graph, at, heard)
    assert [one.finish for one in heard] == [way.words.call, way.words.stop, way.words.stop]
    assert heard[0].reasoning == (THOUGHT if way.shows else "")
    # The thought is in the history until the user speaks again, and only if the client sends it back.
    pairs = itertools.pairwise(turns)
    assert [same_ids(later, earlier) for earlier, later in pairs] == [way.returns, not way.returns]


@pytest.fixture(scope="module")
def pi() -> Iterator[PiAi]:
    with PiAi(installed(CACHE)) as program:
        yield program


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.parametrize("way", PI_WAYS, ids=lambda way: f"{way.package.version} {way.api}")
def test_pi_runs_a_tool_and_its_turns_get_their_evidence(way: PiWay, pi: PiAi, graph: Live, at: Endpoint) -> None:
    heard = pi.converse(way, at, "RUN: harbour", "And again.")
    ran_a_tool_and_went_on(graph, at, heard)
    assert heard[0].reasoning == THOUGHT


def test_an_agent_solves_a_task_with_real_commands(graph: Live, at: Endpoint, tmp_path: Path) -> None:
    script = tmp_path / "finish"
    script.write_text(f"#!/bin/sh\n{mini_swe.DONE}\necho harbour\n")
    script.chmod(0o755)
    solved = mini_swe.solve(at, "Finish.\nRUN: ./finish", tmp_path)
    assert (solved.status, solved.submission.strip(), solved.commands) == ("Submitted", "harbour", ("./finish",))
    (turn,) = turns_of(graph, at, 1)
    assert (turn.arrival.session, turn.arrival.kind) == (at.session, TurnKind.MAIN)


@pytest.mark.parametrize("way", WAYS[::3], ids=lambda way: way.name)
def test_a_malformed_call_is_never_run(way: Way, graph: Live, at: Endpoint) -> None:
    """Whole answers show it as text; a stream that had begun the call ends in an error."""
    try:
        heard = way.converse(at, f"RUN: {MALFORMED}")
    except Exception as error:
        assert way.streams and "tool call" in str(error)
    else:
        assert heard[0].calls == () and MALFORMED in heard[0].text
    assert len(turns_of(graph, at, 1)) == 1


@pytest.mark.parametrize("way", [way for way in WAYS if "helper" not in way.name][::3], ids=lambda way: way.name)
def test_an_answer_is_cut_where_the_client_wants_it(way: Way, graph: Live, at: Endpoint) -> None:
    (heard,) = way.converse(replace(at, max_tokens=40), f"RUN: {LONG}")
    assert (heard.finish, heard.completion_tokens) == (way.words.length, 40)
    assert heard.text.startswith("On and on")


class Place(BaseModel):
    """What an answer is to be; few words, so that random ones fit."""

    kind: Literal["harbour", "bridge"]
    open: bool


@pytest.mark.parametrize(
    "ask", [openai_sdk.parsed, openai_responses.parsed, langchain.parsed], ids=lambda f: f.__module__
)
def test_an_answer_is_of_the_class_that_was_asked_for_and_does_not_train(
    ask: Callable[..., Place], graph: Live, at: Endpoint
) -> None:
    assert isinstance(ask(replace(at, tools=False), "Which place?", Place), Place)
    (turn,) = turns_of(graph, at, 1)
    assert turn.sampling.filtered and drop_reason(turn, 10_000) is DropReason.FILTERED


def test_an_answer_is_some_object_where_that_is_asked_for(at: Endpoint) -> None:
    # Cut where it may: an object can go on for as long as it likes.
    text = openai_sdk.json_object(replace(at, tools=False), "An object, please.")
    assert text.startswith("{")


def test_several_answers_and_their_log_probs_come_from_the_engine(graph: Live, at: Endpoint) -> None:
    heard = openai_sdk.several(at, "RUN: harbour", 2)
    assert [dict(one.calls[0].arguments) for one in heard] == [{"word": "harbour"}] * 2
    assert len({one.calls[0].id for one in heard}) == 2
    first, second = turns_of(graph, at, 2)
    assert first.reply_hash == second.reply_hash and first.turn_id != second.turn_id
    entries = openai_sdk.logprobs(replace(at, tools=False), "Hello.")
    turn = turns_of(graph, at, 3)[2]
    np.testing.assert_allclose([logprob for _, logprob in entries], turn.response_logps, atol=1e-5)


def test_a_call_that_is_insisted_on_is_made(at: Endpoint) -> None:
    heard = openai_sdk.forced(at, "RUN: harbour", {"type": "function", "function": {"name": "fetch"}})
    assert [call.name for call in heard.calls] == ["fetch"]
