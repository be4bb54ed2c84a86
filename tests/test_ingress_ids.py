"""The ids in the headers of what the real handlers send back, in each dialect, for answers and for refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray import serve

from clawrl.actors import ingress as served
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.metrics.config import MetricsConfig
from clawrl.privacy.config import PrivacyConfig
from clawrl.serving import errors
from clawrl.serving.config import ServingConfig
from clawrl.serving.pieces import Piece, TextPiece
from tests.ingress_kit import Coordinator, Ingress, Replicas, finish

KEY = "secret"
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
every_dialect = pytest.mark.parametrize("path", PATHS)


async def _answer(task: GenerationTask) -> AsyncGenerator[Piece | Refused, None]:
    """Does what the last message says."""
    word = task.arrival.messages[-1].content
    if word == "busy":
        yield Refused(error=errors.overloaded())
        return
    if word == "fail":
        raise RuntimeError("the engine is gone")
    yield TextPiece(text="Hello.", version=4)
    if word == "break":
        raise RuntimeError("the engine is gone")
    yield finish("Hello.")


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """The handlers as they are, but for Ray around them."""
    config = ServingConfig(served_name="tiny", api_key=KEY)
    engine = SimpleNamespace(context_length=100)
    deployment: Any = SimpleNamespace(
        name="test",
        serving=config,
        policy=SimpleNamespace(engine=engine),
        metrics=MetricsConfig(enabled=False),
        privacy=PrivacyConfig(),
    )
    made = Ingress(deployment, Replicas([_answer]), None)
    made._coordinator = known = Coordinator()
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(servable_object=made))
    yield known


def _send(method: str, path: str, *, key: str = KEY, **sent: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=served.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, headers={"Authorization": f"Bearer {key}"}, **sent)

    return asyncio.run(send())


def _ask(path: str, word: str = "hi", **fields: Any) -> httpx.Response:
    said = {"input": word} if path == "/v1/responses" else {"messages": [{"role": "user", "content": word}]}
    length = {} if path == "/v1/responses" else {"max_tokens": 9}
    return _send("POST", path, json={"model": "tiny", **said, **length, **fields})


def _turn_ids(response: httpx.Response) -> set[str]:
    """Every id of a turn that the body names."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    found = set()
    for line in lines:
        if line.startswith("{"):
            body = json.loads(line)
            holders = [body, body.get("response"), body.get("message")]
            found |= {holder["clawrl"]["turn_id"] for holder in holders if holder and "clawrl" in holder}
    return found


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_says_which_turn_it_is(coordinator: Coordinator, path: str, stream: bool) -> None:
    response = _ask(path, stream=stream)
    turn_id = response.headers["x-clawrl-turn-id"]
    assert response.status_code == 200 and "Hello." in response.text
    assert response.headers["x-request-id"] == turn_id
    assert _turn_ids(response) == {turn_id}
    assert [(method, arrival.turn_id) for method, arrival in coordinator.asked] == [("arrive", turn_id)]


@every_dialect
def test_a_stream_that_breaks_off_has_said_which_turn_it_is(coordinator: Coordinator, path: str) -> None:
    response = _ask(path, "break", stream=True)
    turn_id = response.headers["x-clawrl-turn-id"]
    assert response.headers["x-request-id"] == turn_id and "error" in response.text
    assert coordinator.asked[0][1].turn_id == turn_id


def test_of_several_answers_the_first_is_in_the_headers(coordinator: Coordinator) -> None:
    response = _ask(PATHS[0], n=2)
    ours = response.json()["clawrl"]
    assert response.headers["x-clawrl-turn-id"] == response.headers["x-request-id"] == ours["turn_ids"][0]
    assert len(set(ours["turn_ids"])) == 2


@every_dialect
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"word": "busy"}, 429),
        ({"word": "busy", "stream": True}, 429),
        ({"word": "fail"}, 500),
        ({"model": "other"}, 404),
        ({"temperature": 9}, 400),
    ],
)
def test_a_refusal_has_an_id_of_its_own(
    coordinator: Coordinator, path: str, fields: dict[str, Any], status: int
) -> None:
    word = fields.get("word", "hi")
    asked = {name: value for name, value in fields.items() if name != "word"}
    first, second = (_ask(path, word, **asked) for _ in range(2))
    assert first.status_code == second.status_code == status
    assert "error" in first.json()
    assert first.headers["x-request-id"] and first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "sent", "status"),
    [
        ("POST", PATHS[0], {"json": {}, "key": "wrong"}, 401),
        ("POST", PATHS[2], {"json": {}, "key": "wrong"}, 401),
        ("POST", PATHS[0], {"content": b"{"}, 400),
        ("POST", PATHS[1], {"json": {"model": "tiny", "input": "hi", "previous_response_id": "resp_x"}}, 404),
        ("GET", "/v1/nowhere", {}, 404),
        ("GET", PATHS[2], {}, 405),
        ("GET", "/clawrl/turns?limit=many", {}, 400),
    ],
)
def test_whatever_is_refused_has_an_id(
    coordinator: Coordinator, method: str, path: str, sent: dict[str, Any], status: int
) -> None:
    response = _send(method, path, **sent)
    assert response.status_code == status and "error" in response.json()
    assert response.headers["x-request-id"]


def test_the_headers_of_a_refusal_are_kept_beside_its_id(coordinator: Coordinator) -> None:
    response = _ask(PATHS[0], "busy")
    assert response.headers["retry-after"] == "1" and response.headers["x-request-id"]
