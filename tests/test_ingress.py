"""The ingress by itself, before replicas that do what a test says: holding, dying, several answers, leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray.serve.context
from fastapi import Request
from ray.exceptions import RayActorError
from starlette.responses import StreamingResponse

from clawrl.actors import ingress as module
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.config import Deployment, read_deployment
from clawrl.engine.errors import EngineError
from clawrl.messages import FinishReason
from clawrl.serving.errors import ApiError, overloaded
from clawrl.serving.pieces import Piece, TextPiece
from tests.idle_clock import run_on_idle_clock
from tests.ingress_kit import Coordinator, Ingress, Replicas, Script, finish

LAPTOP = Path(__file__).resolve().parent.parent / "deployments" / "laptop.yaml"


async def says(task: GenerationTask) -> AsyncIterator[Piece | Refused]:
    yield TextPiece(text="Hello.", version=3)
    yield finish("Hello.")


async def slow(task: GenerationTask) -> AsyncIterator[Piece | Refused]:
    await asyncio.sleep(0.35)
    async for piece in says(task):
        yield piece


async def stuck(task: GenerationTask) -> AsyncIterator[Piece | Refused]:
    yield TextPiece(text="Hel", version=3)
    await asyncio.sleep(60)


async def full(task: GenerationTask) -> AsyncIterator[Piece | Refused]:
    yield Refused(error=overloaded())


def dies(error: Exception, *, after: int = 0) -> Script:
    async def script(task: GenerationTask) -> AsyncIterator[Piece | Refused]:
        for _ in range(after):
            yield TextPiece(text="Hel", version=3)
        raise error

    return script


GONE = [RayActorError(), EngineError("the generation loop died")]


@dataclass
class House:
    """An ingress with what is behind it."""

    ingress: Any
    replicas: Replicas
    coordinator: Coordinator

    async def ask(self, **fields: Any) -> Any:
        body = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "hi"}], **fields}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}
        return await self.ingress.chat_completions(Request(scope, receive))


async def events(response: StreamingResponse) -> list[dict[str, Any]]:
    lines = [str(part, "utf-8") if isinstance(part, bytes) else str(part) async for part in response.body_iterator]
    return [json.loads(line[6:]) for line in "".join(lines).split("\n\n") if line.startswith("data: {")]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Callable[..., House]:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.001)

    def build(*scripts: Script, heartbeat_s: float = 30.0) -> House:
        laptop = read_deployment(LAPTOP)
        serving = laptop.serving.model_copy(update={"heartbeat_s": heartbeat_s})
        deployment: Deployment = laptop.model_copy(update={"serving": serving})
        replicas, coordinator = Replicas(list(scripts)), Coordinator()
        ingress = Ingress(deployment, replicas, None)
        ingress._coordinator = coordinator
        return House(ingress, replicas, coordinator)

    return build


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    run_on_idle_clock(bounded())


def test_an_answer_names_its_request_and_its_turn_and_the_turn_was_announced(house: Callable[..., House]) -> None:
    async def test() -> None:
        at = house(says)
        whole = await at.ask()
        turn_id = whole.headers["X-Clawrl-Turn-Id"]
        assert whole.headers["X-Request-Id"] == turn_id == json.loads(whole.body)["clawrl"]["turn_id"]
        streamed = await at.ask(stream=True)
        await events(streamed)
        assert [arrival.turn_id for arrival in at.coordinator.of("arrive")] == [
            turn_id, streamed.headers["X-Clawrl-Turn-Id"],
        ]  # fmt: skip

    run(test)


def test_a_ledger_that_refuses_a_request_keeps_nobody_from_an_answer_and_no_words_of_it_are_logged(
    house: Callable[..., House], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        at = house(says)

        async def refuses(method: str, *arguments: Any, timeout_s: float) -> int:
            raise RuntimeError(f"cannot store {arguments[0]}")

        at.coordinator.ask = refuses  # type: ignore[method-assign]
        whole = await at.ask(messages=[{"role": "user", "content": "the harbour"}])
        assert json.loads(whole.body)["choices"][0]["message"]["content"]
        await at.ingress._background.finish(timeout_s=5.0)
        (line,) = [record.getMessage() for record in caplog.records if "announced" in record.getMessage()]
        assert "RuntimeError" in line and "harbour" not in caplog.text

    run(test)


def test_a_request_carries_the_floor_that_the_ones_before_it_heard_of(house: Callable[..., House]) -> None:
    async def story() -> None:
        floors: list[int] = []

        async def noted(task: GenerationTask) -> AsyncIterator[Piece | Refused]:
            floors.append(task.floor)
            async for piece in says(task):
                yield piece

        open_house = house(noted)
        for floor in (5, 7, 6):
            open_house.coordinator.floor = floor
            await open_house.ask()
            await asyncio.sleep(0)
        await open_house.ask()
        assert floors == [0, 5, 7, 7], "it never falls"

    run(story)


def test_a_stream_that_is_held_gets_empty_deltas_until_it_goes_on(house: Callable[..., House]) -> None:
    async def test() -> None:
        heard = await events(await house(slow, heartbeat_s=0.1).ask(stream=True))
        deltas = [event["choices"][0]["delta"] for event in heard if event["choices"]]
        first_word = next(i for i, delta in enumerate(deltas) if delta.get("content"))
        assert first_word >= 3 and "".join(delta.get("content") or "" for delta in deltas) == "Hello."

    run(test)


def test_a_full_replica_is_a_429_with_a_time_to_come_again(house: Callable[..., House]) -> None:
    async def test() -> None:
        for stream in (False, True):
            with pytest.raises(ApiError) as caught:
                await house(full).ask(stream=stream)
            assert caught.value.status == 429 and int((caught.value.headers or {})["Retry-After"]) > 0

    run(test)


@pytest.mark.parametrize("gone", GONE, ids=["the process", "the engine"])
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_piece_another_replica_answers(
    house: Callable[..., House], gone: Exception, stream: bool
) -> None:
    async def test() -> None:
        at = house(dies(gone), dies(gone), says)
        answer = await at.ask(stream=stream)
        text = json.dumps(await events(answer)) if stream else answer.body.decode()
        assert "Hello." in text and len(at.replicas.streams) == 3
        # An answer that is empty is on record before anything of it is heard: the next one is another turn.
        await at.ingress._background.finish(timeout_s=5)
        announced = [arrival.turn_id for arrival in at.coordinator.of("arrive")]
        assert len(set(announced)) == 3 and answer.headers["X-Clawrl-Turn-Id"] == announced[2]
        assert [turn.turn_id for turn in at.coordinator.of("record")] == announced[:2]

    run(test)


@pytest.mark.parametrize("gone", GONE, ids=["the process", "the engine"])
def test_an_answer_that_is_not_streamed_is_given_by_another_replica_in_the_middle_too_as_another_turn(
    house: Callable[..., House], gone: Exception
) -> None:
    async def test() -> None:
        at = house(dies(gone, after=2), dies(gone, after=1), says)
        answer = await at.ask()
        await at.ingress._background.finish(timeout_s=5)
        whole, announced = json.loads(answer.body), [arrival.turn_id for arrival in at.coordinator.of("arrive")]
        assert whole["choices"][0]["message"]["content"] == "Hello." and len(set(announced)) == 3
        assert whole["clawrl"]["turn_id"] == answer.headers["X-Clawrl-Turn-Id"] == announced[2]
        lost = at.coordinator.of("record")
        assert [turn.turn_id for turn in lost] == announced[:2] == [turn.arrival.turn_id for turn in lost]
        assert {turn.finish_reason for turn in lost} == {FinishReason.ERROR}

    run(test)


@pytest.mark.parametrize("gone", GONE, ids=["the process", "the engine"])
def test_after_it_the_stream_ends_in_an_error_and_the_turn_is_recorded_as_failed(
    house: Callable[..., House], gone: Exception
) -> None:
    async def test() -> None:
        at = house(dies(gone, after=1), says)
        response = await at.ask(stream=True)
        heard = []
        # The broken connection itself.
        with pytest.raises(ApiError):
            async for part in response.body_iterator:
                heard.append(str(part, "utf-8") if isinstance(part, bytes) else str(part))
        text = "".join(heard)
        assert '"error"' in text and "[DONE]" not in text and '"finish_reason":"stop"' not in text
        await at.ingress._background.finish(timeout_s=5)
        (turn,) = at.coordinator.of("record")
        assert turn.finish_reason is FinishReason.ERROR and turn.turn_id == response.headers["X-Clawrl-Turn-Id"]

    run(test)


def test_when_no_replica_comes_back_it_is_a_503_and_the_turn_is_recorded_as_failed(
    house: Callable[..., House],
) -> None:
    async def test() -> None:
        at = house(dies(RayActorError()))
        with pytest.raises(ApiError) as caught:
            await at.ask()
        await at.ingress._background.finish(timeout_s=5)
        assert caught.value.status == 503 and len(at.replicas.streams) == module._TRIES
        assert [turn.finish_reason for turn in at.coordinator.of("record")] == [FinishReason.ERROR] * module._TRIES

    run(test)


def test_the_calls_of_one_request_are_not_one_call_to_serve(house: Callable[..., House]) -> None:
    """Its router loses all but one of those that have the id of the same HTTP request."""

    async def test() -> None:
        at = house(says)
        context = ray.serve.context._RequestContext(request_id="r", _internal_request_id="the same")
        token = ray.serve.context._serve_request_context.set(context)
        try:
            whole = json.loads((await at.ask(n=3)).body)
        finally:
            ray.serve.context._serve_request_context.reset(token)
        assert [choice["message"]["content"] for choice in whole["choices"]] == ["Hello."] * 3
        assert len(at.replicas.made_for) == 3 and "the same" not in at.replicas.made_for

    run(test)


def test_who_leaves_has_all_answers_cancelled(house: Callable[..., House]) -> None:
    async def test() -> None:
        at = house(stuck)
        response = await at.ask(stream=True, n=2)
        await anext(response.body_iterator)
        await response.body_iterator.aclose()
        assert [stream.cancelled for stream in at.replicas.streams] == [True, True]

    run(test)
