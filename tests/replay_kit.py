"""Requests of real clients on their whole way into a ledger: dialect, session's facts, arrival, answer, turn.

A test sends fixtures of `tests.wire`, or requests that it derives from them as the client would, and says what the
model answers. It gets the body that the client gets, so that the next request can hold the answer as that client
replays it.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from starlette.datastructures import Headers

from clawrl.actors.generation import GenerationTask, tasks_for
from clawrl.messages import FinishReason, Message, ToolCall, Turn, TurnId, VersionSpan
from clawrl.serving.config import ServingConfig
from clawrl.serving.dialects import chat, messages, responses
from clawrl.serving.dialects.base import AnswerFacts, Asked
from clawrl.serving.pieces import FinishPiece, Usage, WholeAnswer
from clawrl.serving.sessions import SessionFacts, answer_hash, reply_hash
from clawrl.serving.trainability import drop_reason
from tests.ledger_kit import open_ledger
from tests.wire import WireRequest

Json = dict[str, Any]
Said = list[tuple[str, str]]
CONFIG = ServingConfig(served_name="served_name")
MAX_SAMPLE_TOKENS = 100
_READ = {"/v1/chat/completions": chat.read, "/v1/responses": responses.read, "/v1/messages": messages.read}
_SPAN = VersionSpan(start=0, end=3, version=0)


def sent(request: WireRequest, headers: dict[str, str | None] | None = None, **fields: Any) -> WireRequest:
    """A copy with other headers and fields; None takes one away."""
    heads: dict[str, Any] = request.headers | (headers or {})
    body: Json = deepcopy(request.body) | deepcopy(fields)
    return WireRequest(
        method=request.method,
        path=request.path,
        headers={name: value for name, value in heads.items() if value is not None},
        body={name: value for name, value in body.items() if value is not None},
    )


def read(request: WireRequest) -> Asked:
    """As the server reads it, with headers whose case does not matter."""
    return _READ[request.path.partition("?")[0]](request.body, Headers(request.headers), CONFIG)


def facts(request: WireRequest) -> SessionFacts:
    return read(request).request.facts


def says(text: str, thought: str = "") -> Message:
    return Message(role="assistant", content=text, reasoning=thought)


def calls(*named: tuple[str, str], text: str = "", thought: str = "") -> Message:
    """The model calls tools, each a name and the arguments as it wrote them."""
    made = tuple(ToolCall(id=f"call_{i:020x}", name=n, arguments=a) for i, (n, a) in enumerate(named, start=160))
    return Message(role="assistant", content=text, reasoning=thought, tool_calls=made)


def javascript(arguments: str) -> str:
    """JSON as a client writes it that has read it and knows one kind of number."""

    def number(text: str) -> int | float:
        return int(float(text)) if float(text).is_integer() else float(text)

    return json.dumps(json.loads(arguments, parse_float=number), ensure_ascii=False, separators=(",", ":"))


class Replay:
    """A ledger and what was sent to it."""

    def __init__(self, path: Path) -> None:
        self.ledger = open_ledger(path)
        self._now = 1_000.0

    def arrive(self, name: str, request: WireRequest) -> GenerationTask:
        """The request is announced. Without an answer it is one that was refused, or whose replica died unheard."""
        self._now += 1.0
        (task,) = tasks_for(read(request).request, "local", self._now)
        task = replace(task, arrival=replace(task.arrival, turn_id=TurnId(name)))
        self.ledger.arrive(task.arrival)
        return task

    def ask(self, name: str, request: WireRequest, answer: Message, finish: FinishReason = FinishReason.STOP) -> Json:
        """The body that the client gets; empty where the answer broke off."""
        turn = self._turn(self.arrive(name, request), answer, finish)
        self.ledger.record(turn, drop_reason(turn, MAX_SAMPLE_TOKENS))
        if finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return {}
        piece = FinishPiece(
            finish_reason=finish,
            spans=turn.spans,
            version=0,
            usage=Usage(prompt_tokens=5, completion_tokens=3),
            message=answer,
        )
        shared = AnswerFacts(turn_ids=(turn.turn_id,), model=CONFIG.served_name, created=1)
        return read(request).writer(shared).whole([WholeAnswer(finish=piece, logprobs=())])

    def _turn(self, task: GenerationTask, answer: Message, finish: FinishReason) -> Turn:
        arrival = task.arrival
        return Turn(
            turn_id=arrival.turn_id,
            arrival=arrival,
            reply_hash=reply_hash(arrival.messages_hash, answer),
            answer_hash=answer_hash(answer),
            answer=answer,
            response_text=answer.content or "".join(call.arguments for call in answer.tool_calls),
            prompt_ids=np.arange(5, dtype=np.int32),
            response_ids=np.arange(3, dtype=np.int32),
            response_logps=-np.ones(3, dtype=np.float32),
            spans=(_SPAN,),
            sampling=task.sampling,
            finish_reason=finish,
            started_at=arrival.arrived_at,
            finished_at=arrival.arrived_at,
            replica="r",
        )

    def turn(self, name: str) -> Turn:
        found = self.ledger.turn(TurnId(name))
        assert found is not None
        return found

    @property
    def tree(self) -> dict[str, str | None]:
        """Each turn that was answered, and the turn that it continues."""
        return {row.turn_id: row.parent for row in reversed(self.ledger.turns())}

    @property
    def evidence(self) -> dict[str, Said]:
        """What was said to each answer that anything was said to, and by whom."""
        found = {row.turn_id: self.ledger.judge_request(row.turn_id) for row in reversed(self.ledger.turns())}
        return {name: [(m.role, m.content) for m in case.evidence] for name, case in found.items() if case is not None}

    @property
    def fates(self) -> dict[str, str]:
        """The reason why a turn was dropped, or its state: ``judging`` is what may train."""
        return {row.turn_id: str(row.drop_reason or row.state) for row in reversed(self.ledger.turns())}

    @property
    def sessions(self) -> dict[str, str]:
        return {row.turn_id: row.session for row in reversed(self.ledger.turns())}
