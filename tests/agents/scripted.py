"""A scripted server for whole agents.

It does what a user says in a conversation that is full of the agent's own words: ``RUN: ...`` is a call of the first
tool that is a shell, or of the one that ``USE: <name>`` names. To ``SLOWLY`` the answer is a long one that takes its
time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.messages import Message, Turn
from clawrl.serving.sessions.evidence import without_internal
from tests.clients import replica, script
from tests.clients.heard import Endpoint
from tests.clients.server import Scripted, scripted_server
from tests.tool_model import SHELLS

# Bytes: agents send 30 to 160 thousand of them before anything is said.
CONTEXT_LENGTH = 400_000
SLOW = "The tide comes in, wave after wave. " * 30
_PAUSE_S = 0.1
_ARGUMENTS = ("command", "cmd", "task")
_SLOWLY = "SLOWLY"
_Generate = Callable[[replica._Script, GenerateRequest], AsyncGenerator[TokenChunk, None]]
_USE = re.compile(r"USE: (\S+)")


@dataclass(frozen=True, kw_only=True)
class AgentServer:
    """``seen`` is what came and was answered, ``broken_off`` the turns whose client went away."""

    seen: Scripted
    broken_off: list[Turn]

    def at(self, session: str | None = None) -> Endpoint:
        return replace(self.seen.endpoint, session=session)


@contextmanager
def agent_server(context_length: int = CONTEXT_LENGTH) -> Iterator[AgentServer]:
    broken_off: list[Turn] = []
    with (
        mock.patch.object(replica, "CONTEXT_LENGTH", context_length),
        mock.patch.object(replica, "written", _written),
        mock.patch.object(replica._Script, "generate", _slowly(replica._Script.generate)),
        mock.patch.object(replica._Turns, "record_unawaited", lambda _, turn: broken_off.append(turn)),
        scripted_server() as seen,
    ):
        yield AgentServer(seen=seen, broken_off=broken_off)


def _written(messages: Sequence[Message], tools: Sequence[str], begun: str = "") -> str:
    said = without_internal(messages)
    asked = _asked(said)
    return SLOW if _is_slow(asked) else script.written(said, _meant(asked, tools), begun)


def _is_slow(asked: str) -> bool:
    """Only what was said last counts: what was left unanswered may stand before it."""
    return _SLOWLY in asked.rpartition("\n")[2]


def _asked(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "user"), "")


def _meant(asked: str, tools: Sequence[str]) -> Sequence[str]:
    """The one tool that is meant, with no other parameter than the text it takes; all tools as they are if none is."""
    named = _USE.findall(asked) or SHELLS
    for tool in tools:
        function = json.loads(tool)["function"]
        known = function["parameters"].get("properties", {})
        argument = next((name for name in _ARGUMENTS if name in known), None)
        if function["name"] in named and argument is not None:
            schema = {"type": "object", "properties": {argument: {"type": "string"}}}
            return [json.dumps({"type": "function", "function": {"name": function["name"], "parameters": schema}})]
    return tools


def _slowly(generate: _Generate) -> _Generate:
    async def slow(self: replica._Script, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        messages = self.tasks[request.request_id].arrival.messages
        pause = _PAUSE_S if _is_slow(_asked(without_internal(messages))) else 0
        async with aclosing(generate(self, request)) as chunks:
            async for chunk in chunks:
                await asyncio.sleep(pause)
                yield chunk

    return slow
