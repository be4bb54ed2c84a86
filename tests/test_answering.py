"""How a replica answers a task, before an engine that does what a test says: limits, refusals, departures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from clawrl.actors.answering import Answering
from clawrl.actors.generation import GenerationTask, Refused, tasks_for
from clawrl.actors.prompt_desk import PromptDesk
from clawrl.engine.errors import EngineError, NoPlace, UnsupportedRequest
from clawrl.engine.protocol import GenerateRequest, TokenChunk
from clawrl.messages import FinishReason, Message, SamplingParams, TemplateInputs, Turn, TurnKind
from clawrl.serving.config import ServingConfig
from clawrl.serving.parsing.formats import AUTO
from clawrl.serving.pieces import FinishPiece, Piece, TextPiece
from clawrl.serving.prompts import PromptBuilder
from clawrl.serving.request import ModelRequest
from clawrl.serving.sessions import SessionFacts
from tests.clients.tokens import byte_tokenizer

TOKENIZER = byte_tokenizer()
CONTEXT = 400
FACTS = SessionFacts(session="s", kind=TurnKind.MAIN, ends=False, group=None, reason="")


@dataclass
class Engine:
    """Says ``text`` a token at a time. ``gate`` keeps it from beginning, ``error`` comes in the stead of an answer, and
    ``dies`` in the stead of its end."""

    text: str = "Hello."
    gate: asyncio.Event | None = None
    error: Exception | None = None
    dies: Exception | None = None
    version: int = 4
    asked: list[GenerateRequest] = field(default_factory=list)
    closed: int = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.asked.append(request)
        try:
            if self.gate is not None:
                try:
                    async with asyncio.timeout(request.place_within_s):
                        await self.gate.wait()
                except TimeoutError:
                    raise NoPlace from None
            if self.error is not None:
                raise self.error
            ids = [*TOKENIZER.encode(self.text, add_special_tokens=False), int(TOKENIZER.eos_token_id)]
            for token in ids[:-1]:
                yield _chunk(token)
                await asyncio.sleep(0)
            if self.dies is not None:
                raise self.dies
            yield _chunk(ids[-1], FinishReason.STOP)
        finally:
            self.closed += 1


@dataclass
class Recorder:
    answered: list[Turn] = field(default_factory=list)
    unawaited: list[Turn] = field(default_factory=list)

    async def record(self, turn: Turn) -> None:
        self.answered.append(turn)

    def record_unawaited(self, turn: Turn) -> None:
        self.unawaited.append(turn)


def _chunk(token: int, finish: FinishReason | None = None) -> TokenChunk:
    ids, logps = np.array([token], dtype=np.int32), np.array([-0.5], dtype=np.float32)
    return TokenChunk(ids=ids, logps=logps, version=4, finish_reason=finish)


def _answering(engine: Engine, recorder: Recorder, waiting: int | Callable[[], int] = 0, **config: Any) -> Answering:
    return Answering(
        engine,
        TOKENIZER,
        ServingConfig(served_name="m", **config),
        recorder,
        context_length=CONTEXT,
        answer_format=AUTO,
        replica="r",
        waiting=waiting if callable(waiting) else lambda: waiting,
    )


def _task(content: str = "hi", **fields: Any) -> GenerationTask:
    wanted = ModelRequest(
        model="m",
        **(
            {"messages": (Message(role="user", content=content),), "facts": FACTS, "sampling": SamplingParams()}
            | fields
        ),
    )
    return tasks_for(wanted, "o", 1.0)[0]


async def _all(answering: Answering, task: GenerationTask) -> list[Piece | Refused]:
    return [item async for item in answering.generate(task)]


def _run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test()

    asyncio.run(bounded())


def _refusal(items: Sequence[Piece | Refused]) -> Any:
    (item,) = items
    assert isinstance(item, Refused)
    return item.error


def test_an_answer_is_recorded_before_its_last_piece() -> None:
    async def test() -> None:
        recorder = Recorder()
        items = await _all(_answering(Engine(), recorder), _task())
        assert "".join(item.text for item in items if isinstance(item, TextPiece)) == "Hello."
        assert isinstance(items[-1], FinishPiece) and items[-1].version == 4
        (turn,) = recorder.answered
        assert turn.answer.content == "Hello." and turn.replica == "r" and recorder.unawaited == []

    _run(test)


def test_more_waiting_requests_than_allowed_are_a_429_with_a_time_to_come_again() -> None:
    async def test() -> None:
        engine, recorder = Engine(), Recorder()
        at_the_limit = _answering(engine, recorder, waiting=2, max_waiting_requests=2)
        error = _refusal(await _all(at_the_limit, _task()))
        assert error.status == 429 and int(error.headers["Retry-After"]) > 0
        below = await _all(_answering(engine, recorder, waiting=1, max_waiting_requests=2), _task())
        assert isinstance(below[-1], FinishPiece) and len(engine.asked) == 1

    _run(test)


def test_of_a_burst_no_more_wait_than_are_allowed() -> None:
    async def test() -> None:
        gate, recorder = asyncio.Event(), Recorder()
        engine = Engine(gate=gate)
        answering = _answering(engine, recorder, waiting=lambda: len(engine.asked), max_waiting_requests=2)
        burst = asyncio.gather(*(_all(answering, _task()) for _ in range(20)))
        while len(engine.asked) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        gate.set()
        refused = [items for items in await burst if isinstance(items[0], Refused)]
        assert len(engine.asked) == 2 and len(refused) == 18

    _run(test)


def test_a_request_that_was_held_too_long_is_a_429_frees_its_place_and_has_no_turn() -> None:
    async def test() -> None:
        engine, recorder = Engine(gate=asyncio.Event()), Recorder()
        error = _refusal(await _all(_answering(engine, recorder, hold_timeout_s=0.05), _task()))
        assert error.status == 429 and "Retry-After" in error.headers
        assert engine.closed == 1 and recorder.answered == recorder.unawaited == []

    _run(test)


@pytest.mark.parametrize(
    ("param", "field"), [("json_schema", "text.format"), ("max_tokens", "max_tokens"), (None, None)]
)
def test_what_the_engine_cannot_do_names_the_clients_own_field(param: str | None, field: str | None) -> None:
    async def test() -> None:
        engine = Engine(error=UnsupportedRequest("not this", param=param))
        error = _refusal(await _all(_answering(engine, Recorder()), _task(schema_field="text.format")))
        assert (error.status, error.param) == (400, field) and "not this" in error.message

    _run(test)


def test_a_prompt_that_does_not_fit_is_refused_and_a_budget_that_does_not_is_cut() -> None:
    async def test() -> None:
        engine, recorder = Engine(), Recorder()
        answering = _answering(engine, recorder)
        error = _refusal(await _all(answering, _task("x" * CONTEXT)))
        assert error.code == "context_length_exceeded" and engine.asked == []
        await _all(answering, _task(sampling=SamplingParams(max_tokens=9_999)))
        (request,) = engine.asked
        assert request.sampling.max_tokens == CONTEXT - len(request.prompt_ids)

    _run(test)


@pytest.mark.parametrize("text", ["", " \n", "<think>\nWhat now?\n</think>\n\n"])
def test_an_answer_that_says_nothing_visible_never_looks_complete(text: str) -> None:
    async def test() -> None:
        recorder = Recorder()
        items = await _all(_answering(Engine(text=text), recorder), _task())
        assert isinstance(items[-1], Refused) and items[-1].error.status >= 500
        assert len(recorder.answered) == 1, "it was sampled, and the ledger says why it does not train"

    _run(test)


def test_marks_in_an_answer_of_a_schema_are_part_of_its_json() -> None:
    async def test() -> None:
        written, recorder = '{"a": "<think>no</think>", "b": "<tool_call>"}', Recorder()
        await _all(_answering(Engine(text=written), recorder), _task(sampling=SamplingParams(json_schema="{}")))
        assert recorder.answered[0].answer == Message(role="assistant", content=written)

    _run(test)


def test_a_client_that_leaves_frees_the_slot_and_its_turn_is_aborted() -> None:
    async def test() -> None:
        engine, recorder = Engine(text="a long answer"), Recorder()
        pieces = _answering(engine, recorder).generate(_task())
        await anext(pieces)
        await pieces.aclose()
        assert engine.closed == 1 and recorder.answered == []
        (turn,) = recorder.unawaited
        assert turn.finish_reason is FinishReason.ABORTED and 0 < len(turn.response_ids) < 13

    _run(test)


def test_an_engine_that_fails_raises_and_the_turn_is_failed() -> None:
    async def test() -> None:
        recorder = Recorder()
        with pytest.raises(RuntimeError, match="gone"):
            await _all(_answering(Engine(error=RuntimeError("gone")), recorder), _task())
        assert [turn.finish_reason for turn in recorder.unawaited] == [FinishReason.ERROR]

    _run(test)


@pytest.mark.parametrize(("said", "turns"), [("", 0), ("Hel", 1)])
def test_of_a_dead_engine_only_what_was_heard_of_it_is_a_turn(said: str, turns: int) -> None:
    async def test() -> None:
        recorder = Recorder()
        engine = Engine(text=said, dies=EngineError("the loop died"))
        with pytest.raises(EngineError):
            await _all(_answering(engine, recorder), _task())
        assert [turn.finish_reason for turn in recorder.unawaited] == [FinishReason.ERROR] * turns

    _run(test)


def test_while_a_long_prompt_is_made_answers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    making, made = threading.Event(), threading.Event()
    build = PromptBuilder.build

    def slow(self: PromptBuilder, arrival: Any, prefill: Any) -> Any:
        if arrival.messages[-1].content == "long":
            making.set()
            assert made.wait(60), "nobody else was answered meanwhile"
        return build(self, arrival, prefill)

    monkeypatch.setattr(PromptBuilder, "build", slow)

    async def test() -> None:
        recorder = Recorder()
        answering = _answering(Engine(text="a long answer"), recorder)
        streaming = answering.generate(_task())
        await anext(streaming)
        long = asyncio.create_task(_all(answering, _task("long")))
        while not making.is_set():
            await asyncio.sleep(0.01)
        rest = [item async for item in streaming]
        assert isinstance(rest[-1], FinishPiece)
        made.set()
        assert isinstance((await long)[-1], FinishPiece)

    _run(test)


def test_what_was_answered_is_remembered_before_the_next_prompt_is_made() -> None:
    async def test() -> None:
        recorder = Recorder()
        answering = _answering(Engine(), recorder)
        await _all(answering, _task())
        said = (Message(role="user", content="hi"), recorder.answered[0].answer, Message(role="user", content="go on"))
        await _all(
            answering,
            tasks_for(ModelRequest(model="m", messages=said, sampling=SamplingParams(), facts=FACTS), "o", 2.0)[0],
        )
        first, second = recorder.answered
        assert second.reused_ids == len(first.prompt_ids) + len(first.response_ids)

    _run(test)


def test_counting_takes_prompts_of_any_length() -> None:
    async def test() -> None:
        desk = PromptDesk(TOKENIZER, CONTEXT)
        said = (Message(role="user", content="x" * 2 * CONTEXT),)
        short = await desk.count((Message(role="user", content=""),), TemplateInputs())
        assert await desk.count(said, TemplateInputs()) == short + 2 * CONTEXT
        desk.close()

    _run(test)


def test_a_replica_below_the_floor_answers_when_it_has_caught_up() -> None:
    async def run() -> None:
        engine = Engine(version=3)
        task = replace(_task(), floor=4)
        asked = asyncio.create_task(_all(_answering(engine, Recorder()), task))
        await asyncio.sleep(0.1)
        assert engine.asked == []
        engine.version = 4
        pieces = await asyncio.wait_for(asked, 120)
        assert isinstance(pieces[-1], FinishPiece)

    asyncio.run(run())


@pytest.mark.parametrize("may_rise", [True, False])
def test_a_replica_that_stays_below_the_floor_leaves_the_request_to_another(may_rise: bool) -> None:
    async def run() -> None:
        engine, recorder = Engine(version=3), Recorder()
        answering = _answering(engine, recorder, hold_timeout_s=0.1 if may_rise else 60.0)
        answering._may_rise = lambda: may_rise
        async with asyncio.timeout(30):
            with pytest.raises(EngineError, match="holds version 3, and the request wants 4 or newer"):
                await _all(answering, replace(_task(), floor=4))
        assert engine.asked == [] and recorder.answered == recorder.unawaited == [], "the turn is the other one's"

    asyncio.run(run())


def test_requests_that_are_held_for_a_newer_version_are_waiting_requests_and_no_more_than_are_allowed() -> None:
    async def test() -> None:
        engine, recorder = Engine(version=3), Recorder()
        answering = _answering(engine, recorder, waiting=1, max_waiting_requests=4)
        burst = [asyncio.create_task(_all(answering, replace(_task(), floor=4))) for _ in range(20)]
        while sum(one.done() for one in burst) < 17:
            await asyncio.sleep(0.01)
        assert answering.held == 3 and engine.asked == []
        refused = [_refusal(one.result()) for one in burst if one.done()]
        assert {(error.status, error.code) for error in refused} == {(429, "rate_limit_exceeded")}
        assert all("Retry-After" in error.headers for error in refused)
        leaves = next(one for one in burst if not one.done())
        leaves.cancel()
        await asyncio.wait([leaves])
        assert answering.held == 2, "whoever goes away makes room"
        engine.version = 4
        answered = [items for one in burst if one is not leaves and not isinstance((items := await one)[0], Refused)]
        assert len(answered) == len(engine.asked) == 2 and answering.held == 0

    _run(test)
