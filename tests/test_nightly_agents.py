"""OpenClaw, Codex and Claude Code before a running graph: they run a tool, and their turns get the right evidence."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawrl.ledger.views import TurnRow
from clawrl.messages import Turn, TurnKind
from tests.agents import claude_code, codex, openclaw
from tests.clients.deployment import tool_deployment
from tests.clients.heard import Endpoint
from tests.clients.pi import why_not
from tests.live import KEY, MODEL, Live
from tests.tool_model import HEARD

MISSING = why_not()
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.agents,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(2400),
]
FOUND = "harbour is here"
TEXTS = ("Please look.\nRUN: ./look", "And what is your name?", "RUN: ./look")


@pytest.fixture(scope="module")
def graph() -> Iterator[Live]:
    with Live(tool_deployment()) as deployment:
        yield deployment


@pytest.fixture
def at(graph: Live) -> Endpoint:
    return Endpoint(base_url=graph.url, key=KEY, model=MODEL, session=str(uuid.uuid4()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    script = tmp_path / "look"
    script.write_text(f"#!/bin/sh\necho {FOUND}\n")
    script.chmod(0o755)
    return tmp_path


def main_turns(graph: Live, after: int, count: int) -> list[tuple[TurnRow, Turn]]:
    """The main turns that came after the ``after`` first, in order, once there are ``count`` of them."""
    deadline = time.monotonic() + 30
    while True:
        with graph.ledger() as ledger:
            rows = sorted(ledger.turns(10_000), key=lambda row: row.seq)[after:]
            turns = [(row, ledger.turn(row.turn_id)) for row in rows if row.kind is TurnKind.MAIN]
        if len(turns) >= count or time.monotonic() > deadline:
            return [(row, turn) for row, turn in turns if turn is not None]
        time.sleep(0.5)


@pytest.mark.parametrize("agent", [openclaw.converse, codex.converse, claude_code.converse], ids=lambda f: f.__module__)
def test_an_agent_runs_tools_for_several_turns_and_each_turn_gets_its_own_evidence(
    agent: Callable[..., tuple[str, ...]], graph: Live, at: Endpoint, folder: Path
) -> None:
    before = len(graph.turns())
    said = agent(at, folder, *TEXTS)
    assert said[0].startswith("The result is ") and said[1] == HEARD and said[2].startswith("The result is ")
    pairs = main_turns(graph, before, 5)
    assert len(pairs) == 5, [(row.session, turn.answer) for row, turn in pairs]
    assert len({row.session for row, _ in pairs}) == 1
    # One row of turns: nothing that the agent adds by itself breaks the chain.
    assert [row.parent for row, _ in pairs[1:]] == [row.turn_id for row, _ in pairs[:-1]]
    assert [len(turn.answer.tool_calls) for _, turn in pairs] == [1, 0, 0, 1, 0]
    evidence = []
    with graph.ledger() as ledger:
        for row, _ in pairs:
            case = ledger.judge_request(row.turn_id)
            evidence.append([(m.role, m.content) for m in case.evidence] if case is not None else [])
    ((role, result),) = evidence[0]
    assert role == "tool" and FOUND in result
    assert evidence[1] == [("user", TEXTS[1])]
    assert evidence[2] == [("user", TEXTS[2])]
    ((role, result),) = evidence[3]
    assert role == "tool" and FOUND in result
    assert evidence[4] == []
