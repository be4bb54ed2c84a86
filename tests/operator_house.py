"""A server without Ray for the tests of operating: real HTTP, the real ingress, a real coordinator on a folder.

What is not real is the replica: it answers with a text that a test chooses, and records the turn as a replica does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
from ray import serve

from clawrl.actors import ingress as served
from clawrl.actors.coordinator import Coordinator
from clawrl.actors.generation import GenerationTask, Refused
from clawrl.messages import FinishReason, Message, Turn, VersionSpan
from clawrl.serving.pieces import Piece, TextPiece
from clawrl.serving.sessions import answer_hash, reply_hash
from tests.ingress_kit import Ingress, Replicas, finish
from tests.live import KEY
from tests.office import Office

Answers = Callable[[GenerationTask], str]


def counting() -> Answers:
    """A different answer each time."""
    numbers = iter(range(10**6))
    return lambda task: f"policy answer {next(numbers)}"


class Asked:
    """The coordinator as the ingress reaches it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        return await getattr(self._coordinator, method)(*arguments)


class Pieces:
    async def remote(self, ids: list[int]) -> list[str]:
        return [f"<{token_id}>" for token_id in ids]


class House:
    """``url`` answers while the house is open; `do` runs something on the coordinator's own loop."""

    def __init__(self, folder: Path, answers: Answers, patch: pytest.MonkeyPatch, **overrides: Any) -> None:
        self._office = Office(folder, **overrides)
        self._answers = answers
        self._patch = patch
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.refusals: list[Any] = []
        self.coordinator: Coordinator

    @property
    def deployment(self) -> Any:
        return self._office.deployment

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120.0)

    async def _serve(self) -> None:
        self.coordinator = self._office.open()
        replicas: Any = Replicas([self._answer])
        replicas.pieces = Pieces()
        made = Ingress(self._office.deployment, replicas, None)
        made._coordinator = Asked(self.coordinator)
        self._patch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(servable_object=made))
        self._server = uvicorn.Server(uvicorn.Config(served.api, log_level="error", lifespan="off"))
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._up.set()
        await serving
        await self.coordinator.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _answer(self, task: GenerationTask) -> AsyncIterator[Piece | Refused]:
        if self.refusals:
            yield Refused(error=self.refusals.pop())
            return
        said = Message(role="assistant", content=self._answers(task))
        await self.coordinator.record(
            Turn(
                turn_id=task.arrival.turn_id,
                arrival=task.arrival,
                reply_hash=reply_hash(task.arrival.messages_hash, said),
                answer_hash=answer_hash(said),
                answer=said,
                response_text=said.content,
                prompt_ids=np.arange(3, 9, dtype=np.int32),
                response_ids=np.arange(4, dtype=np.int32),
                response_logps=-np.ones(4, dtype=np.float32),
                spans=(VersionSpan(start=0, end=4, version=0),),
                sampling=task.sampling,
                finish_reason=FinishReason.STOP,
                started_at=task.arrival.arrived_at,
                finished_at=task.arrival.arrived_at + 1.0,
                replica="r",
            )
        )
        yield TextPiece(text=said.content, version=0)
        yield finish(said.content)

    def open(self) -> None:
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)
        self._thread.start()
        assert self._up.wait(120.0), "the house did not open"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20.0)
        self._loop.close()
        self._listener.close()


@contextmanager
def house(folder: Path, patch: pytest.MonkeyPatch, answers: Answers | None = None, **overrides: Any) -> Iterator[House]:
    patch.setenv("CLAWRL_TEST_KEY", KEY)
    patch.setenv("CLAWRL_API_KEY", KEY)
    made = House(folder, answers or counting(), patch, **overrides)
    patch.setenv("CLAWRL_URL", made.url)
    made.open()
    try:
        yield made
    finally:
        made.close()
